"""Quantizes the linear layers of one block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aloft.quantizer import grid as grids
from aloft.quantizer.decoder import STAGES, submodule
from aloft.quantizer.gptq import refine, round_with_feedback
from aloft.quantizer.online import OnlineTurn, round_inputs
from aloft.quantizer.recipe import STATIC, Recipe
from aloft.quantizer.statistics import StageInputs


@dataclass
class Quantized:
    """One linear layer as integers. input_scale, input_offset: static activations; left, right: Kronecker transform."""

    codes: torch.Tensor
    grid: grids.Grid
    recipe: Recipe
    error: float
    input_scale: float | None = None
    input_offset: float | None = None
    left: torch.Tensor | None = None
    right: torch.Tensor | None = None
    clip: float = 1.0


def scale_dtype(recipe: Recipe) -> torch.dtype:
    """Where the operator takes scales of few bits, they are rounded to bfloat16 beforehand."""
    return torch.bfloat16 if recipe.activation_bits == 16 or recipe.scheme == "w4a8" else torch.float32


def quantize_linear(
    weight: torch.Tensor, recipe: Recipe, inputs: StageInputs | None
) -> tuple[torch.Tensor, grids.Grid]:
    """Codes and grid of a weight ``[N, K]`` float32."""
    # error feedback moves the errors between columns, so the grid is fitted to all of them alike
    importance = None if inputs is None or recipe.gptq else inputs.second.diagonal()
    grid = grids.fit(
        weight, recipe.bits, recipe.group, recipe.symmetric, importance, recipe.search, scale_dtype=scale_dtype(recipe)
    )
    if not recipe.gptq:
        return grid.round(weight), grid
    assert inputs is not None
    codes = round_with_feedback(weight, inputs.second, grid)
    return refine(weight, inputs.second, grid, codes, recipe.rounds, scale_dtype(recipe))


def quantize_block(
    layer: Any, inputs: dict[str, StageInputs] | None, choose: Callable[[str], Recipe | None], seed: int = 0
) -> dict[str, Quantized]:
    """Quantizes a block's linear layers and leaves them computing what the quantized ones will.

    choose: the recipe of a linear layer by its name in the block; None keeps it as it is.
    """
    made: dict[str, Quantized] = {}
    for stage, (names, _) in STAGES.items():
        here = None if inputs is None else inputs[stage]
        turn: OnlineTurn | None = None
        for name in names:
            recipe = choose(name)
            if recipe is None:
                continue
            module = submodule(layer, name)
            recipe = recipe.fitted(module.weight.shape[1])
            original, seen = module.weight.data.float(), here
            if recipe.kronecker:
                assert here is not None
                turn = turn or OnlineTurn.make(here, seed)
                original, seen = turn.weight(original), turn.turned(here)
            codes, grid = quantize_linear(original, recipe, seen)
            value = grid.value(codes)
            entry = Quantized(codes, grid, recipe, _error(value - original, original, seen))
            if recipe.kronecker:
                assert turn is not None
                entry.left, entry.right, entry.clip = turn.left, turn.right, turn.clip
            if recipe.activations == STATIC:
                assert here is not None
                entry.input_scale, entry.input_offset = static_range(here, recipe.symmetric_inputs)
            module.weight.data = value.to(torch.bfloat16)
            round_inputs(module, entry)
            made[name] = entry
    for parameter in layer.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return made


def _error(difference: torch.Tensor, original: torch.Tensor, inputs: StageInputs | None) -> float:
    """Relative squared error of the output (of the weight where there are no inputs)."""
    if inputs is None:
        return float(difference.square().sum() / original.square().sum())
    second = inputs.second
    return float(((difference @ second) * difference).sum() / ((original @ second) * original).sum())


def static_range(inputs: StageInputs, symmetric: bool) -> tuple[float, float]:
    """Scale and offset of ``q = round(x / scale + offset)``, representable in bfloat16 where the operator takes it."""
    if symmetric:
        return float(inputs.peak.max()) / 127, 0.0
    low, high = min(inputs.low, 0.0), max(inputs.high, 0.0)
    scale = (high - low) / 255
    return scale, float(torch.tensor(-128 - low / scale).round().clamp(-128, 127))
