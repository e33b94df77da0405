"""Contract of npu_swiglu."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    left, right = x.chunk(2, dim)
    return left * torch.sigmoid(left) * right


def _cases() -> Iterator[Case]:
    make = Maker("npu_swiglu")
    for dtype in FLOATS:
        for label, shape, dim in (
            ("aligned", (4, 128), -1),
            ("unaligned", (3, 5, 74), -1),
            ("middle dimension", (3, 8, 5), 1),
            ("first dimension", (6, 7), 0),
            ("two elements", (2,), -1),
            ("no rows", (0, 64), -1),
        ):
            yield Case(f"{label}, {dtype}", (make.normal(shape, dtype, scale=3.0), dim), dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x,), dtype=dtype)
        yield Case(f"large values, {dtype}", (make.normal((4, 64), dtype, scale=60.0),), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_swiglu, bad")
    yield Bad("odd dimension", (make.normal((4, 7)),), names="7")
    yield Bad("integers", (make.normal((4, 8)).int(),), names="int")


CONTRACT = Contract(
    name="npu_swiglu",
    schemas=("npu::npu_swiglu",),
    formula="x is split in halves a, b along dim; y = a · sigmoid(a) · b.",
    dtypes=FLOATS,
    limits=("the dimension is even",),
    tolerance=rounded(atol=1e-30, fp32=4e-6, why="the exponential"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 3.1: vendor documentation and published kernels",
)
