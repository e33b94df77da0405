"""Contract of npu_interleave_rope."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts.npu_rotary_mul import turned
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import rounded

DTYPES = (torch.float16, torch.bfloat16)


def _reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    separated = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    return separated * cos + turned(separated) * sin


def _cases() -> Iterator[Case]:
    make = Maker("npu_interleave_rope")
    for dtype in DTYPES:
        for label, shape, table in (
            ("decode tokens as batch", (5, 4, 1, 64), (5, 1, 1, 64)),
            ("tables per head", (2, 3, 4, 64), (2, 3, 4, 64)),
            ("tables shared by the heads", (2, 3, 4, 64), (2, 1, 4, 64)),
        ):
            args = (make.normal(shape, dtype), make.normal(table, dtype), make.normal(table, dtype))
            yield Case(f"{label}, {dtype}", args, dtype=dtype)
        cos, sin = make.normal((2, 1, 4, 64), dtype), make.normal((2, 1, 4, 64), dtype)
        for label, x in layouts(make.normal((2, 3, 4, 64), dtype)):
            yield Case(f"{label}, {dtype}", (x, cos, sin), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_interleave_rope, bad")
    x = make.normal((2, 3, 4, 64), torch.bfloat16)
    short = make.normal((2, 1, 3, 64), torch.bfloat16)
    yield Bad("tables of another length", (x, short, short.clone()), names="cos")
    small = make.normal((2, 3, 4, 32), torch.bfloat16)
    yield Bad("width 32", (small, small.clone(), small.clone()), names="64", strict=True)
    wide = make.normal((2, 3, 4, 64))
    yield Bad("float32", (wide, wide.clone(), wide.clone()), names="float32", strict=True)


CONTRACT = Contract(
    name="npu_interleave_rope",
    schemas=("npu::npu_interleave_rope",),
    formula="d = even elements, then odd elements of x; y = d · cos + rot_half(d) · sin (the order stays that of d).",
    dtypes=DTYPES,
    limits=("x is [B, N, S, 64]", "cos and sin are [B, 1 or N, S, 64]"),
    tolerance=rounded(fp32=4e-7, atol=4e-6, why="two products and a sum"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 4.3: vendor documentation",
)
