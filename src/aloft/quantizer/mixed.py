"""Mixed precision: which layers of a 4-bit model deserve 8 bits, from the error each makes on calibration text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aloft.quantizer import grid
from aloft.quantizer.decoder import STAGES, submodule
from aloft.quantizer.recipe import Recipe
from aloft.quantizer.statistics import StageInputs

_WIDER = {"w4a16": "w8a16", "w4a8": "w8a8-dynamic"}


@dataclass(frozen=True)
class Sensitivity:
    """One matrix product of the engine (layers that are fused there count as one).

    error: relative squared error of its output with nearest 4-bit rounding. weights: how many numbers it has.
    """

    block: int
    stage: str
    error: float
    weights: int


def measure(layer: Any, block: int, inputs: dict[str, StageInputs], recipe: Recipe) -> list[Sensitivity]:
    """Sensitivities of a float block's stages."""
    found = []
    for stage, (names, _) in STAGES.items():
        second = inputs[stage].second
        lost = whole = 0.0
        count = 0
        for name in names:
            weight = submodule(layer, name).weight.data.float()
            fitted = grid.fit(weight, recipe.bits, recipe.group, recipe.symmetric, second.diagonal())
            difference = fitted.value(fitted.round(weight)) - weight
            lost += float(((difference @ second) * difference).sum())
            whole += float(((weight @ second) * weight).sum())
            count += weight.numel()
        found.append(Sensitivity(block, stage, lost / max(whole, 1e-30), count))
    return found


def widened(found: list[Sensitivity], target_bits: float) -> set[tuple[int, str]]:
    """The stages that get 8 bits: the largest errors first, until the mean width reaches ``target_bits``.

    Raises:
        ValueError: the target is not between 4 and 8.
    """
    if not 4 <= target_bits <= 8:
        raise ValueError(f"--target-bits must be from 4 to 8, not {target_bits}")
    budget = sum(one.weights for one in found) * (target_bits - 4) / 4
    chosen = set()
    for one in sorted(found, key=lambda one: (-one.error, one.block, one.stage)):
        if one.weights <= budget:
            budget -= one.weights
            chosen.add((one.block, one.stage))
    return chosen


def chooser(recipe: Recipe, block: int, chosen: set[tuple[int, str]]) -> Callable[[str], Recipe | None]:
    """The recipe of every linear layer of a block.

    Raises:
        ValueError: the scheme has no wider one.
    """
    if not chosen:
        return recipe.of
    if recipe.scheme not in _WIDER:
        raise ValueError(f"--target-bits goes with {' and '.join(_WIDER)}, not with {recipe.scheme}")
    wide = replace(recipe, scheme=_WIDER[recipe.scheme], bits=8, group=0, symmetric=True)
    stage_of = {name: stage for stage, (names, _) in STAGES.items() for name in names}
    return lambda name: wide if (block, stage_of[name]) in chosen else recipe.of(name)
