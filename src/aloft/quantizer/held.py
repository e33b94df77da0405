"""Blocks between the pass that rounds them one by one and the distillation that trains them together."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aloft.quantizer.block import Quantized
from aloft.quantizer.grid import Grid
from aloft.quantizer.recipe import Recipe

_OPTIONAL = ("left", "right")


@dataclass
class HeldBlock:
    """layers: quantized linear layers by name in the block. parameters: what else the block has, and the float weights
    that were rounded. extra: tensors written as they are, by full name."""

    layers: dict[str, Quantized]
    parameters: dict[str, torch.Tensor]
    extra: dict[str, torch.Tensor] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        from safetensors.torch import save_file

        tensors = {f"parameter:{name}": tensor for name, tensor in self.parameters.items()}
        tensors |= {f"extra:{name}": tensor for name, tensor in self.extra.items()}
        said: dict[str, Any] = {}
        for name, entry in self.layers.items():
            tensors |= {
                f"codes:{name}": entry.codes,
                f"scale:{name}": entry.grid.scale,
                f"zero:{name}": entry.grid.zero,
            }
            for part in _OPTIONAL:
                if getattr(entry, part) is not None:
                    tensors[f"{part}:{name}"] = getattr(entry, part)
            grid = entry.grid
            said[name] = {
                "recipe": dataclasses.asdict(entry.recipe),
                "grid": [grid.group, grid.low, grid.high],
                "entry": [entry.error, entry.input_scale, entry.input_offset, entry.clip],
            }
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file, {"layers": json.dumps(said)}
        )

    @classmethod
    def load(cls, file: Path) -> HeldBlock:
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            said = json.loads(opened.metadata()["layers"])
            parts: dict[str, dict[str, torch.Tensor]] = {}
            for key in list(opened.keys()):
                kind, _, name = key.partition(":")
                parts.setdefault(kind, {})[name] = opened.get_tensor(key)
        layers = {}
        for name, of in said.items():
            recipe = Recipe(**(of["recipe"] | {"sensitive": tuple(of["recipe"]["sensitive"])}))
            error, input_scale, input_offset, clip = of["entry"]
            grid = Grid(parts["scale"][name], parts["zero"][name], *of["grid"])
            left, right = (parts.get(part, {}).get(name) for part in _OPTIONAL)
            layers[name] = Quantized(
                parts["codes"][name], grid, recipe, error, input_scale, input_offset, left, right, clip
            )
        return cls(layers, parts.get("parameter", {}), parts.get("extra", {}))
