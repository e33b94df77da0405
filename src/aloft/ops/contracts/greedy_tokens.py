"""Contract of aloft::greedy_tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS


def _reference(logits: torch.Tensor) -> torch.Tensor:
    """By comparison, not by torch.argmax."""
    nan = logits.isnan()
    top = torch.where(nan, -torch.inf, logits).amax(-1, keepdim=True)
    wins = torch.where(nan.any(-1, keepdim=True), nan, logits == top)
    return torch.where(wins, torch.arange(logits.shape[1]), logits.shape[1]).amin(-1, keepdim=True).int()


def _cases() -> Iterator[Case]:
    make = Maker("greedy_tokens")
    for dtype in FLOATS:
        for shape in ((1, 1), (1, 49152), (3, 67), (33, 640), (0, 8)):
            yield Case(f"{shape}, {dtype}", (make.normal(shape, dtype),), dtype=dtype)
        ties = make.integers((5, 300), -4, 4).to(dtype)
        yield Case(f"ties, {dtype}", (ties,), dtype=dtype)
        special = make.normal((6, 50), dtype)
        special[0], special[1, 7], special[2, 9] = -torch.inf, torch.inf, torch.nan
        special[3, 30:40], special[4] = torch.nan, 0.0
        special[4, ::2] = -0.0
        yield Case(f"infinities, NaN, zeros of both signs, {dtype}", (special,), dtype=dtype)
        for label, view in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (view,), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("greedy_tokens, bad")
    yield Bad("one dimension", (make.normal((8,)),), names="logits")
    yield Bad("no vocabulary", (make.normal((2, 0)),), names="logits")
    yield Bad("integers", (make.integers((2, 8), 0, 9),), names="logits")


CONTRACT = Contract(
    name="greedy_tokens",
    schemas=("aloft::greedy_tokens",),
    formula="the first greatest element of every row of [B, V], a NaN before all, as int32 [B, 1].",
    dtypes=FLOATS,
    limits=("logits [B, V] of any strides, at least one column",),
    tolerance={},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    optional=True,
    source="aloft: greedy sampling; argmax and a conversion on CANN",
)
