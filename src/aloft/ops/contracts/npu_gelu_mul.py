"""Contract of npu_gelu_mul."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    left, right = input.chunk(2, -1)
    return torch.nn.functional.gelu(left, approximate=approximate) * right


def _cases() -> Iterator[Case]:
    make = Maker("npu_gelu_mul")
    for dtype in FLOATS:
        for kind in ("none", "tanh"):
            for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 74))):
                x = make.normal(shape, dtype, scale=2.0)
                yield Case(f"{label}, {kind}, {dtype}", (x,), {"approximate": kind}, dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x,), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_gelu_mul, bad")
    yield Bad("odd dimension", (make.normal((4, 7)),))
    yield Bad("unknown approximation", (make.normal((4, 8)),), {"approximate": "fast"}, names="approximate")


CONTRACT = Contract(
    name="npu_gelu_mul",
    schemas=("npu::npu_gelu_mul",),
    formula="The last dimension is split in halves a, b; y = gelu(a) · b.",
    dtypes=FLOATS,
    limits=("the last dimension is even",),
    tolerance=rounded(atol=4e-6, fp32=4e-6, why="erf within 5e-7"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 3.5: vendor documentation",
)
