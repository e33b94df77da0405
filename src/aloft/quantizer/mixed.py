"""Mixed precision: which products of a 4-bit model get 8 bits, from what each costs the model's predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from aloft.quantizer import grid
from aloft.quantizer.decoder import STAGES, submodule
from aloft.quantizer.distill import divergence
from aloft.quantizer.recipe import Recipe
from aloft.quantizer.statistics import StageInputs, Stream, advance, observe

_WIDER = {"w4a16": "w8a16", "w4a8": "w8a8-dynamic"}
# a step of an 8-bit grid is 1/17 of a 4-bit grid's, and the divergence grows with its square
_WIDE_PART = 1 / 17**2


@dataclass(frozen=True)
class Sensitivity:
    """One matrix product of the engine (layers that are fused there count as one).

    divergence: nats a token by which the model's predictions differ when this product alone is rounded to 4 bits
    (nearest rounding: the error feedback that follows makes it less). weights: how many numbers it has.
    """

    block: int
    stage: str
    divergence: float
    weights: int


@dataclass(frozen=True)
class Plan:
    """wide: products with 8 bits. predicted: the sum of all products' divergences under the plan, nats a token.
    reasons: a sentence for each product."""

    wide: set[tuple[int, str]]
    predicted: float
    mean_bits: float
    reasons: list[dict[str, Any]]


class Probe:
    """Passes the float model once; at every product a variant of the stream branches off that rounds it alone."""

    def __init__(self, recipe: Recipe, stream: Stream) -> None:
        self.recipe, self.stream = recipe, stream
        self.variants: dict[tuple[int, str], torch.Tensor] = {}
        self.weights: dict[tuple[int, str], int] = {}

    def block(self, layer: Any, index: int) -> None:
        """Takes the float stream and all variants through block ``index``."""
        position = self.stream.position
        for key, states in self.variants.items():
            self.variants[key] = advance(layer, Stream(states, position)).states
        inputs = observe(layer, self.stream)
        for stage, (names, _) in STAGES.items():
            modules = [submodule(layer, name) for name in names]
            kept = [module.weight.data for module in modules]
            for module in modules:
                module.weight.data = self._nearest(module.weight.data, inputs[stage])
            self.variants[index, stage] = advance(layer, self.stream).states
            self.weights[index, stage] = sum(weight.numel() for weight in kept)
            for module, weight in zip(modules, kept, strict=True):
                module.weight.data = weight
        self.stream = advance(layer, self.stream)

    def _nearest(self, weight: torch.Tensor, inputs: StageInputs) -> torch.Tensor:
        wide = weight.float()
        recipe = self.recipe.fitted(weight.shape[1])
        fitted = grid.fit(wide, recipe.bits, recipe.group, recipe.symmetric, inputs.second.diagonal())
        return fitted.value(fitted.round(wide)).to(weight.dtype)

    def found(self, norm: Callable[[torch.Tensor], torch.Tensor], head: torch.Tensor) -> list[Sensitivity]:
        """What every product costs, after the last block."""
        wanted = norm(self.stream.states).flatten(0, 1)
        rows = []
        for (index, stage), states in self.variants.items():
            lost, _ = divergence(norm(states).flatten(0, 1), wanted, head)
            rows.append(Sensitivity(index, stage, max(lost, 0.0) / len(wanted), self.weights[index, stage]))
        return rows


def check(recipe: Recipe, target_bits: float | None, max_loss: float | None) -> None:
    """Refuses goals that cannot be met, before any work.

    Raises:
        ValueError: the scheme has no wider one, or the goal is none.
    """
    if target_bits is not None and max_loss is not None:
        raise ValueError("--target-bits and --max-loss are two goals: give one")
    option = "--target-bits" if target_bits is not None else "--max-loss"
    if recipe.scheme not in _WIDER:
        raise ValueError(f"{option} goes with {' and '.join(_WIDER)}, not with {recipe.scheme}")
    if target_bits is not None and not 4 <= target_bits <= 8:
        raise ValueError(f"--target-bits must be from 4 to 8, not {target_bits}")
    if max_loss is not None and not 0 < max_loss < 1:
        raise ValueError(f"--max-loss must be above 0 and below 1 (1% is 0.01), not {max_loss}")


def plan(found: list[Sensitivity], target_bits: float | None = None, max_loss: float | None = None) -> Plan:
    """Widens the products that cost most for their size, until the mean width is used up or the loss is small enough.

    max_loss: relative rise of the perplexity; the predicted one is the exponential of the summed divergences.
    """
    total = sum(one.weights for one in found)
    budget = total * (target_bits - 4) / 4 if target_bits is not None else math.inf
    allowed = math.log1p(max_loss) if max_loss is not None else -1.0
    lost = sum(one.divergence for one in found)
    wide: set[tuple[int, str]] = set()
    reasons = []
    for one in sorted(found, key=lambda one: (-one.divergence / one.weights, one.block, one.stage)):
        row = {"block": one.block, "stage": one.stage, "divergence_at_4_bits": one.divergence, "bits": 4}
        if lost <= allowed:
            row["why"] = f"4 bits: without more the predicted rise is {math.expm1(lost):.2%}"
        elif one.weights > budget:
            row["why"] = f"4 bits: the mean width of {target_bits} leaves no room"
        else:
            wide.add((one.block, one.stage))
            budget -= one.weights
            before, lost = lost, lost - one.divergence * (1 - _WIDE_PART)
            row |= {
                "bits": 8,
                "why": f"8 bits: at 4 it alone would cost {one.divergence:.5f} nats a token; the predicted rise falls "
                f"from {math.expm1(before):.2%} to {math.expm1(lost):.2%}",
            }
        reasons.append(row)
    widened = sum(one.weights for one in found if (one.block, one.stage) in wide)
    return Plan(wide, lost, 4 + 4 * widened / total, reasons)


def chooser(recipe: Recipe, block: int, chosen: set[tuple[int, str]]) -> Callable[[str], Recipe | None]:
    """The recipe of every linear layer of a block."""
    if not chosen:
        return recipe.of
    wide = replace(recipe, scheme=_WIDER[recipe.scheme], bits=8, group=0, symmetric=True)
    stage_of = {name: stage for stage, (names, _) in STAGES.items() for name in names}
    return lambda name: wide if (block, stage_of[name]) in chosen else recipe.of(name)
