"""Scales of input channels found by search, so that rounding to few bits costs those that matter least (AWQ)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aloft.quantizer import fold
from aloft.quantizer import grid as grids
from aloft.quantizer.block import scale_dtype
from aloft.quantizer.decoder import STAGES, submodule
from aloft.quantizer.recipe import Recipe
from aloft.quantizer.statistics import StageInputs

_STEPS = 20  # exponents tried, from 0


def search(
    layer: Any, inputs: dict[str, StageInputs], choose: Callable[[str], Recipe | None], head_dim: int
) -> dict[str, float]:
    """Activation-aware scales (AWQ, arXiv 2306.00978), folded into what makes the inputs; the exponent of each stage.

    A channel's factor is its root mean square over the calibration tokens to an exponent from 0 (no change) to 1; the
    one whose nearest rounding has the least output error is taken, for all layers that share the inputs together.
    """
    chosen = {}
    for stage, (names, before) in STAGES.items():
        second = inputs[stage].second
        energy = second.diagonal()
        if stage == "o":  # value channels are shared by several query heads
            energy = fold.over_group(energy, submodule(layer, before).weight.shape[0], head_dim, torch.mean)
        best, least = torch.ones_like(energy), float("inf")
        for step in range(_STEPS):
            factor = fold.levelled(energy.clamp(min=1e-10) ** (step / _STEPS / 2))
            wide = fold.for_inputs(stage, factor, len(second), head_dim)
            error = sum(
                _error(submodule(layer, name).weight.data.float(), choose(name), wide, second) for name in names
            )
            if error < least:
                best, least, chosen[stage] = factor, error, step / _STEPS
        if chosen[stage]:
            fold.move(layer, stage, best, len(second), head_dim)
    return chosen


def _error(weight: torch.Tensor, recipe: Recipe | None, factor: torch.Tensor, second: torch.Tensor) -> float:
    """Squared error of the outputs over the calibration tokens when the scaled weight is rounded to nearest."""
    if recipe is None:
        return 0.0
    recipe, scaled = recipe.fitted(weight.shape[1]), weight * factor
    grid = grids.fit(scaled, recipe.bits, recipe.group, recipe.symmetric, search=False, scale_dtype=scale_dtype(recipe))
    off = grid.value(grid.round(scaled)) / factor - weight
    return float(((off @ second) * off).sum())
