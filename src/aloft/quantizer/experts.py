"""Mixtures of experts: tensors straight from the files, each rounded to the nearest by itself.

transformers keeps the experts of a layer in one tensor where files have one a layer and expert, so no module is built:
recipes that look at activations, or turn weights, are not for these models.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from aloft.quantizer import grid as grids
from aloft.quantizer.block import Quantized, quantize_linear
from aloft.quantizer.decoder import Decoder, tensor_files
from aloft.quantizer.held import HeldBlock
from aloft.quantizer.recipe import STATIC, Recipe, recipe

SCHEMES = ("w8a16", "w8a8-dynamic", "w4a16", "w4a8")
ALGORITHMS = ("auto", "mse", "minmax")
#: what is quantized of a block: projections, and Mixtral's names of an expert's layers; routers are not
_LINEAR = re.compile(r"(.*_proj|.*\.experts\.\d+\.w[123])\.weight")
_EXPERT = re.compile(r"\.experts\.\d+\.")


def is_mixture(folder: Path) -> bool:
    """Whether the folder's weights have experts, or several of them in one tensor."""
    return any(".experts." in name or "block_sparse_moe" in name for name in tensor_files(folder))


def nearest(scheme: str, group: int | None, symmetric: bool | None, algorithm: str) -> Recipe:
    """The scheme's recipe with nearest rounding, clipped by least squared error (``auto``, ``mse``) or not at all.

    Raises:
        ValueError: a scheme or algorithm that mixtures of experts are not quantized with.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"--algorithm must be one of {', '.join(ALGORITHMS)} for mixtures of experts, not {algorithm!r}"
        )
    found = recipe(scheme, group, symmetric, "minmax" if algorithm == "minmax" else "mse")
    if found.scheme not in SCHEMES or found.activations == STATIC:
        raise ValueError(f"--scheme must be one of {', '.join(SCHEMES)} for mixtures of experts, not {scheme!r}")
    return found


class Mixture(Decoder):
    """A decoder with experts, whose blocks are read tensor by tensor.

    Raises:
        ValueError: the folder's experts are not stored one by one.
    """

    def __init__(self, folder: Path) -> None:
        self.open(folder)
        self.num_layers = int(self.config.num_hidden_layers)
        self.shapes = self._shapes()
        stacked = [name for name, shape in self.shapes.items() if len(shape) > 2]
        if stacked or not any(_EXPERT.search(name) for name in self.shapes):
            raise ValueError(
                f"{folder}: the tool knows experts stored one by one (experts.0.gate_proj.weight, "
                f"experts.0.w1.weight), not {stacked[0] if stacked else 'as here'}"
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        from safetensors import safe_open

        made = {}
        for file in sorted(set(self.where.values())):
            with safe_open(self.folder / file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    if name.startswith("model.layers."):
                        made[name] = tuple(opened.get_slice(name).get_shape())
        return made

    def input_features(self) -> set[int]:
        return {shape[1] for name, shape in self.shapes.items() if _LINEAR.fullmatch(name)}

    def block(self, index: int, wanted: Recipe) -> HeldBlock:
        """Block ``index``, its linear layers quantized one after the other."""
        from safetensors import safe_open

        prefix = f"model.layers.{index}."
        made = HeldBlock({}, {})
        with ExitStack() as stack:
            files: dict[str, Any] = {}
            for name in (name for name in self.shapes if name.startswith(prefix)):
                file = self.where[name]
                if file not in files:
                    files[file] = stack.enter_context(safe_open(self.folder / file, framework="pt"))
                tensor: torch.Tensor = files[file].get_tensor(name)
                own = name.removeprefix(prefix)
                if not _LINEAR.fullmatch(name):
                    made.parameters[own] = tensor
                    continue
                weight, fitted = tensor.float(), wanted.fitted(tensor.shape[1])
                codes, grid = quantize_linear(weight, fitted, None)
                made.layers[own.removesuffix(".weight")] = Quantized(codes, grid, fitted, _error(weight, codes, grid))
        return made


def _error(weight: torch.Tensor, codes: torch.Tensor, grid: grids.Grid) -> float:
    """Relative squared error of the weight."""
    return float((grid.value(codes) - weight).square().sum() / weight.square().sum().clamp(min=1e-30))
