"""Contracts of x · sigmoid(slope · x)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded

SHAPES = (("aligned", (4, 64)), ("unaligned", (3, 5, 37)), ("one element", (1,)), ("empty", (0, 8)))


def gated_by_itself(name: str, slope: float, formula: str) -> Contract:
    """The contract of the operator npu::`name`."""

    def cases() -> Iterator[Case]:
        make = Maker(name)
        for dtype in FLOATS:
            for label, shape in SHAPES:
                yield Case(f"{label}, {dtype}", (make.normal(shape, dtype, scale=3.0),), dtype=dtype)
            for label, x in layouts(make.normal((5, 40), dtype, scale=3.0)):
                yield Case(f"{label}, {dtype}", (x,), {}, dtype=dtype)

    def bad() -> Iterator[Bad]:
        yield Bad("integers", (Maker(f"{name}, bad").normal((4, 8)).int(),), {})

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(slope * x)

    return Contract(
        name=name,
        schemas=(f"npu::{name}",),
        formula=formula,
        dtypes=FLOATS,
        limits=("any shape",),
        tolerance=rounded(atol=1e-30, fp32=4e-6, why="the exponential"),
        reference=reference,
        cases=cases,
        bad=bad,
        source="contracts 3.5: vendor documentation",
    )
