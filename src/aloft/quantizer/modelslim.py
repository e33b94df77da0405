"""Writes ModelSlim's checkpoints: tensors of a quantized layer, and ``quant_model_description.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from aloft.quantization.formats import MODELSLIM_FILE as FILE
from aloft.quantization.weight import pack_nibbles
from aloft.quantizer.block import Quantized

TYPES = {
    "w8a16": "W8A16",
    "w8a8-dynamic": "W8A8_DYNAMIC",
    "w8a8-static": "W8A8",
    "w4a16": "W4A16",
    "w4a8": "W4A8_DYNAMIC",
    "w4a4": "W4A4_FLATQUANT_DYNAMIC",
}
FLOAT = "FLOAT"


class ModelSlimWriter:
    """Collects the description while layers are written."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype
        self.description: dict[str, str] = {}
        self.group = 0

    def layer(self, name: str, entry: Quantized, bias: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Tensors of a quantized linear layer, by full name."""
        scheme, grid, codes = entry.recipe.scheme, entry.grid, entry.codes
        kind = TYPES[scheme]
        rows = codes.shape[0]
        made: dict[str, torch.Tensor] = {"weight": codes}
        made["weight_scale"], made["weight_offset"] = grid.scale, grid.zero
        if kind == "W8A8":
            assert entry.input_scale is not None and entry.input_offset is not None
            dequantization = grid.scale.flatten() * entry.input_scale
            correction = -codes.sum(1, dtype=torch.int64) * int(entry.input_offset)
            if bias is not None:
                correction = correction + torch.round(bias.double() / dequantization).long()
            made["input_scale"] = torch.tensor([entry.input_scale])
            made["input_offset"] = torch.tensor([entry.input_offset]).to(torch.int8)
            made["quant_bias"] = correction.to(torch.int32)
            made["deq_scale"] = dequantization
        elif kind == "W4A16":
            made["weight"] = pack_nibbles(codes, 0 if entry.recipe.group else 1)
        elif kind == "W4A8_DYNAMIC":
            made["weight"] = pack_nibbles(codes, 0)
            if entry.recipe.group:
                # first level: the row's largest scale; second level: what is left of it in each group
                first = grid.scale.amax(1, keepdim=True)
                made["weight_scale"], made["weight_offset"] = first, torch.zeros(rows, 1)
                made["weight_scale_second"] = grid.scale / first
                made["weight_offset_second"] = torch.zeros_like(grid.scale)
        elif kind == "W4A4_FLATQUANT_DYNAMIC":
            assert entry.left is not None and entry.right is not None
            made["left_trans"], made["right_trans"] = entry.left.to(self.dtype), entry.right.to(self.dtype)
            made["clip_ratio"] = torch.tensor([entry.clip])
        if kind in ("W4A16", "W4A8_DYNAMIC"):
            self.group = entry.recipe.group
        self.description.update({f"{name}.{part}": kind for part in made})
        return {f"{name}.{part}": tensor.contiguous() for part, tensor in made.items()}

    def cache(self, name: str, key_peak: torch.Tensor, value_peak: torch.Tensor) -> dict[str, torch.Tensor]:
        """Symmetric int8 scales of an attention layer's keys and values, from their peaks ``[Hkv * D]``."""
        made = {}
        for part, peak in (("k_proj", key_peak), ("v_proj", value_peak)):
            made[f"{name}.{part}.kv_cache_scale"] = (peak / 127).clamp(min=1e-6)
            made[f"{name}.{part}.kv_cache_offset"] = torch.zeros_like(peak)
        self.description.update(dict.fromkeys(made, "C8"))
        return made

    def float(self, name: str) -> None:
        """Notes a tensor that stays as it is."""
        self.description[name] = FLOAT

    def finish(self, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
        """Writes the description; returns config.json's content."""
        kinds = {kind for kind in self.description.values() if kind != FLOAT}
        content: dict[str, Any] = {"model_quant_type": max(sorted(kinds - {"C8"}), key=len, default=FLOAT)}
        if "C8" in kinds:
            content["kv_cache_type"] = "C8"
        content |= {"version": "1.0.0", "group_size": self.group, **self.description}
        (folder / FILE).write_text(json.dumps(content, indent=1) + "\n")
        return config
