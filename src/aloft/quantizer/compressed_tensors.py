"""Writes compressed-tensors' checkpoints: tensors of a quantized layer, and ``quantization_config``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aloft.quantizer.block import Quantized
from aloft.quantizer.recipe import FLOAT_ACTIVATIONS, STATIC, Recipe
from aloft.quantizer.table import NAME as TABLE


class CompressedTensorsWriter:
    """Collects layer groups by recipe while layers are written."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype
        self.groups: dict[Recipe, list[str]] = {}
        self.left_out: list[str] = []

    def layer(self, name: str, entry: Quantized, bias: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Tensors of a quantized linear layer, by full name.

        Raises:
            ValueError: the format has no place for the scheme.
        """
        recipe, grid, codes = entry.recipe, entry.grid, entry.codes
        if recipe.kronecker:
            raise ValueError(f"the format compressed-tensors has no {recipe.scheme}: use --format modelslim")
        self.groups.setdefault(recipe, []).append(name)
        if _is_packed(recipe):
            from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

            made = {
                "weight_packed": pack_to_int32(codes, recipe.bits),
                "weight_scale": grid.scale.to(self.dtype),
                "weight_shape": torch.tensor(codes.shape),
            }
            if not recipe.symmetric:
                made["weight_zero_point"] = pack_to_int32(grid.zero.to(torch.int8), recipe.bits, packed_dim=0)
        else:
            made = {"weight": codes, "weight_scale": grid.scale}
        if recipe.activations == STATIC:
            assert entry.input_scale is not None and entry.input_offset is not None
            made["input_scale"] = torch.tensor([entry.input_scale])
            if not recipe.symmetric_inputs:
                made["input_zero_point"] = torch.tensor([entry.input_offset]).to(torch.int8)
        return {f"{name}.{part}": tensor.contiguous() for part, tensor in made.items()}

    def float(self, name: str) -> None:
        """Notes a tensor that stays as it is."""
        if name.endswith(".weight") and "norm" not in name and "embed" not in name:
            self.left_out.append(name.removesuffix(".weight"))

    def finish(self, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
        """config.json's content."""
        from compressed_tensors.quantization import QuantizationConfig

        linears = {recipe: [name for name in names if name != TABLE] for recipe, names in self.groups.items()}
        alone = sum(map(bool, linears.values())) == 1
        groups = {
            f"group_{index}": _group(
                recipe,
                (["Linear"] if alone and linears[recipe] else linears[recipe])
                + [name for name in names if name == TABLE],
            )
            for index, (recipe, names) in enumerate(self.groups.items())
        }
        forms = {group["format"] for group in groups.values()}
        written = QuantizationConfig.model_validate(
            {
                "config_groups": groups,
                "quant_method": "compressed-tensors",
                "format": forms.pop() if len(forms) == 1 else "mixed-precision",
                "quantization_status": "compressed",
                "ignore": self.left_out + ([] if "lm_head" in self.left_out else ["lm_head"]),
            }
        )
        return config | {"quantization_config": written.model_dump(mode="json", exclude_none=True)}


def _is_packed(recipe: Recipe) -> bool:
    return recipe.activations == FLOAT_ACTIVATIONS


def _group(recipe: Recipe, targets: list[str]) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": recipe.bits,
        "type": "int",
        "symmetric": recipe.symmetric,
        "strategy": "group" if recipe.group else "channel",
    }
    if recipe.group:
        weights["group_size"] = recipe.group
    made = {
        "targets": targets,
        "weights": weights,
        "format": "pack-quantized" if _is_packed(recipe) else "int-quantized",
    }
    if recipe.activations != FLOAT_ACTIVATIONS:
        static = recipe.activations == STATIC
        made["input_activations"] = {
            "num_bits": recipe.activation_bits,
            "type": "int",
            "symmetric": recipe.symmetric_inputs if static else True,
            "strategy": "tensor" if static else "token",
            "dynamic": not static,
        }
    return made
