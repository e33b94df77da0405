"""Contract of npu_geglu."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(
    x: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = x.chunk(2, dim)
    active, other = (left, right) if activate_left else (right, left)
    gelu = torch.nn.functional.gelu(active, approximate="tanh" if approximate else "none")
    return other * gelu, gelu


def _cases() -> Iterator[Case]:
    make = Maker("npu_geglu")
    for dtype in FLOATS:
        for approximate in (0, 1):
            for left in (False, True):
                for label, shape, dim in (
                    ("aligned", (4, 64), -1),
                    ("unaligned", (3, 5, 74), -1),
                    ("dim 1", (3, 8, 5), 1),
                ):
                    x = make.normal(shape, dtype, scale=2.0)
                    name = f"{label}, {approximate}, left: {left}, {dtype}"
                    yield Case(name, (x, dim, approximate, left), dtype=dtype, returns=(dtype, dtype))
        for label, x in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x,), dtype=dtype, returns=(dtype, dtype))


def _bad() -> Iterator[Bad]:
    make = Maker("npu_geglu, bad")
    yield Bad("odd dimension", (make.normal((4, 7)),), names="7")
    yield Bad("approximate out of range", (make.normal((4, 8)), -1, 2), names="approximate")


CONTRACT = Contract(
    name="npu_geglu",
    schemas=("npu::npu_geglu",),
    formula="x is split in halves along dim; y = gelu(right) · left, or gelu(left) · right; returns (y, gelu).",
    dtypes=FLOATS,
    limits=("the dimension is even", "approximate is 0 (erf) or 1 (tanh)"),
    tolerance=rounded(atol=4e-6, fp32=4e-6, why="erf within 5e-7"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 3.5: vendor documentation",
)
