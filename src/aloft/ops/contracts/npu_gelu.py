"""Contract of npu_gelu."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def _cases() -> Iterator[Case]:
    make = Maker("npu_gelu")
    for dtype in FLOATS:
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 37)), ("one element", (1,)), ("empty", (0, 8))):
            for kind in ("none", "tanh"):
                x = make.normal(shape, dtype, scale=3.0)
                yield Case(f"{label}, {kind}, {dtype}", (x,), {"approximate": kind}, dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype, scale=3.0)):
            yield Case(f"{label}, {dtype}", (x,), {"approximate": "tanh"}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    yield Bad("integers", (Maker("npu_gelu, bad").normal((4, 8)).int(),), {"approximate": "tanh"})


CONTRACT = Contract(
    name="npu_gelu",
    schemas=("npu::npu_gelu",),
    formula="approximate none: y = x · (1 + erf(x / √2)) / 2; tanh: the tanh approximation.",
    dtypes=FLOATS,
    limits=("any shape",),
    tolerance=rounded(atol=2e-6, fp32=4e-6, why="erf within 5e-7"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 3.5: vendor documentation",
)
