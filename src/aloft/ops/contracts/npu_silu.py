"""Contract of npu_silu."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def _cases() -> Iterator[Case]:
    make = Maker("npu_silu")
    for dtype in FLOATS:
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 37)), ("one element", (1,)), ("empty", (0, 8))):
            yield Case(f"{label}, {dtype}", (make.normal(shape, dtype, scale=3.0),), dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype, scale=3.0)):
            yield Case(f"{label}, {dtype}", (x,), {}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    yield Bad("integers", (Maker("npu_silu, bad").normal((4, 8)).int(),), {})


CONTRACT = Contract(
    name="npu_silu",
    schemas=("npu::npu_silu",),
    formula="y = x · sigmoid(x).",
    dtypes=FLOATS,
    limits=("any shape",),
    tolerance=rounded(atol=1e-30, fp32=4e-6, why="the exponential"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 3.5: vendor documentation",
)
