"""Mixed precision: which products of a 4-bit model get a wider scheme, from what each costs the model's predictions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from aloft.quantizer.block import quantize_block
from aloft.quantizer.decoder import LINEARS, STAGES, submodule
from aloft.quantizer.distill import divergence
from aloft.quantizer.recipe import Recipe
from aloft.quantizer.statistics import StageInputs, Stream, advance, observe

_WIDER = {"w4a16": "w8a16", "w4a8": "w8a8-dynamic", "w4a4": "w4a8"}


@dataclass(frozen=True)
class Sensitivity:
    """One matrix product of the engine (layers that are fused there count as one).

    divergence, wide: nats a token by which the model's predictions differ when this product alone is rounded as the
    scheme says, or as the wider one (nearest rounding: the error feedback that follows makes it less). weights: how
    many numbers it has.
    """

    block: int
    stage: str
    divergence: float
    wide: float
    weights: int


@dataclass(frozen=True)
class Plan:
    """wide: products with the wider scheme. unmet: what the goal lacks where every product's being wider does not reach
    it, else "". predicted: the sum of all products' divergences under the plan, nats a
    token. mean_bits: of the weights. reasons: a row for each product, with the scheme and why."""

    wide: set[tuple[int, str]]
    predicted: float
    mean_bits: float
    reasons: list[dict[str, Any]]
    unmet: str = ""


class Probe:
    """Passes the float model once; at every product two variants of the stream branch off that round it alone."""

    def __init__(self, recipe: Recipe, stream: Stream, seed: int) -> None:
        self.recipe, self.stream, self.seed = recipe, stream, seed
        self.variants: dict[tuple[int, str], list[torch.Tensor]] = {}
        self.weights: dict[tuple[int, str], int] = {}

    def block(self, layer: Any, index: int) -> None:
        """Takes the float stream and all variants through block ``index``."""
        for variants in self.variants.values():
            variants[:] = [advance(layer, Stream(states, self.stream.position)).states for states in variants]
        inputs = observe(layer, self.stream)
        for stage, (names, _) in STAGES.items():
            narrow, wider = self.recipe.of(names[0]), wide(self.recipe)
            assert narrow is not None
            if narrow.scheme != wider.scheme:
                self.variants[index, stage] = [self._alone(layer, names, of, inputs) for of in (narrow, wider)]
                self.weights[index, stage] = sum(submodule(layer, name).weight.numel() for name in names)
        self.stream = advance(layer, self.stream)

    def _alone(
        self, layer: Any, names: tuple[str, ...], recipe: Recipe, inputs: dict[str, StageInputs]
    ) -> torch.Tensor:
        changed = copy.deepcopy(layer)
        nearest = replace(recipe, gptq=False)
        quantize_block(changed, inputs, lambda name: nearest if name in names else None, self.seed)
        return advance(changed, self.stream).states

    def found(self, norm: Callable[[torch.Tensor], torch.Tensor], head: torch.Tensor) -> list[Sensitivity]:
        """What every product costs, after the last block."""
        wanted = norm(self.stream.states).flatten(0, 1)
        rows = []
        for (index, stage), variants in self.variants.items():
            lost = [
                max(divergence(norm(states).flatten(0, 1), wanted, head)[0], 0.0) / len(wanted) for states in variants
            ]
            rows.append(Sensitivity(index, stage, lost[0], min(lost), self.weights[index, stage]))
        return rows


def wide(recipe: Recipe) -> Recipe:
    """The wider recipe of a product."""
    scheme = _WIDER[recipe.scheme]
    if scheme == "w4a8":
        return replace(recipe, sensitive=LINEARS).of(LINEARS[0]) or recipe
    return replace(recipe, scheme=scheme, bits=8, group=0, adapt=False, symmetric=True, sensitive=())


def check(recipe: Recipe, target_bits: float | None, max_loss: float | None) -> None:
    """Refuses goals that cannot be met, before any work.

    Raises:
        ValueError: the scheme has no wider one, or the goal is none.
    """
    if target_bits is not None and max_loss is not None:
        raise ValueError("--target-bits and --max-loss are two goals: give one")
    option = "--target-bits" if target_bits is not None else "--max-loss"
    if recipe.scheme not in _WIDER:
        raise ValueError(f"{option} goes with {', '.join(_WIDER)}, not with {recipe.scheme}")
    if target_bits is not None and recipe.scheme == "w4a4":
        raise ValueError("--target-bits goes with w4a16 and w4a8: the wider scheme of w4a4 has as many bits a weight")
    if target_bits is not None and not 4 <= target_bits <= 8:
        raise ValueError(f"--target-bits must be from 4 to 8, not {target_bits}")
    if max_loss is not None and not 0 < max_loss < 1:
        raise ValueError(f"--max-loss must be above 0 and below 1 (1% is 0.01), not {max_loss}")


def plan(
    found: list[Sensitivity], recipe: Recipe, target_bits: float | None = None, max_loss: float | None = None
) -> Plan:
    """Widens the products that cost most for their size, until the mean width is used up or the loss is small enough.

    max_loss: relative rise of the perplexity; the predicted one is the exponential of the summed divergences.
    """
    total = sum(one.weights for one in found)
    wider = wide(recipe)
    added = wider.bits - recipe.bits
    budget = total * (target_bits - recipe.bits) if target_bits is not None else math.inf
    allowed = math.log1p(max_loss) if max_loss is not None else -1.0
    lost = sum(one.divergence for one in found)
    chosen: set[tuple[int, str]] = set()
    reasons = []
    for one in sorted(found, key=lambda one: ((one.wide - one.divergence) / one.weights, one.block, one.stage)):
        row = {"block": one.block, "stage": one.stage, "scheme": recipe.scheme}
        row |= {"divergence": one.divergence, "divergence_wide": one.wide}
        if lost <= allowed:
            row["why"] = f"{recipe.scheme}: without more the predicted rise is {math.expm1(lost):.2%}"
        elif one.weights * added > budget:
            row["why"] = f"{recipe.scheme}: the mean width of {target_bits} leaves no room"
        else:
            chosen.add((one.block, one.stage))
            budget -= one.weights * added
            before, lost = lost, lost - one.divergence + one.wide
            row["scheme"] = wider.scheme
            row["why"] = (
                f"{wider.scheme}: as {recipe.scheme} it alone would cost {one.divergence:.5f} nats a token; the "
                f"predicted rise falls from {math.expm1(before):.2%} to {math.expm1(lost):.2%}"
            )
        reasons.append(row)
    widened = sum(one.weights for one in found if (one.block, one.stage) in chosen)
    unmet = ""
    if max_loss is not None and lost > allowed:
        unmet = (
            f"--max-loss {max_loss:.4g} is not reached: the predicted rise is {math.expm1(lost):.2%} though every "
            f"product is {wider.scheme}"
        )
    return Plan(chosen, lost, recipe.bits + added * widened / total, reasons, unmet)


def chooser(recipe: Recipe, block: int, chosen: set[tuple[int, str]]) -> Callable[[str], Recipe | None]:
    """The recipe of every linear layer of a block."""
    if not chosen:
        return recipe.of
    wider = wide(recipe)
    stage_of = {name: stage for stage, (names, _) in STAGES.items() for name in names}
    return lambda name: wider if (block, stage_of[name]) in chosen else recipe.of(name)
