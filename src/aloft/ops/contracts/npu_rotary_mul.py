"""Contract of npu_rotary_mul."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def turned(x: torch.Tensor, mode: str = "half") -> torch.Tensor:
    """rot(x): [-b, a] for the pairs (a, b) of the mode."""
    if mode == "half":
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _reference(
    x: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    return x * r1 + (turned(x, rotary_mode) if rotate is None else x @ rotate) * r2


def _cases() -> Iterator[Case]:
    make = Maker("npu_rotary_mul")
    for dtype in FLOATS:
        for label, shape, table in (
            ("BNSD, 11SD", (2, 3, 5, 64), (1, 1, 5, 64)),
            ("BNSD, B1SD", (2, 3, 5, 64), (2, 1, 5, 64)),
            ("BNSD, full tables", (2, 3, 5, 64), (2, 3, 5, 64)),
            ("BSND, 1S1D", (2, 5, 3, 128), (1, 5, 1, 128)),
            ("SBND", (5, 2, 3, 64), (5, 1, 1, 64)),
            ("TND, T1D", (7, 3, 64), (7, 1, 64)),
            ("width 20", (2, 5, 3, 20), (2, 5, 1, 20)),
            ("width 2", (2, 5, 3, 2), (2, 5, 1, 2)),
            ("no tokens", (0, 3, 64), (0, 1, 64)),
        ):
            for mode in ("half", "interleave"):
                x, cos, sin = make.normal(shape, dtype), make.normal(table, dtype), make.normal(table, dtype)
                yield Case(f"{label}, {mode}, {dtype}", (x, cos, sin, mode), dtype=dtype)
        cos, sin = make.normal((6, 1, 40), dtype), make.normal((6, 1, 40), dtype)
        for label, x in layouts(make.normal((6, 3, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x, cos, sin), dtype=dtype)
        x, matrix = make.normal((6, 3, 40), dtype), make.normal((40, 40), dtype)
        loose = Tolerance(rounded()[dtype].rtol, 1e-5, "a product of 40 terms before the rotation")
        yield Case(f"matrix, {dtype}", (x, cos, sin, "half", matrix), dtype=dtype, tolerance=loose)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_rotary_mul, bad")
    x, table = make.normal((7, 3, 64)), make.normal((7, 1, 64))
    yield Bad("odd width", (make.normal((7, 3, 7)), make.normal((7, 1, 7)), make.normal((7, 1, 7))), names="even")
    yield Bad("tables of another length", (x, table[:5].clone(), table[:5].clone()), names="cos")
    yield Bad("narrow tables", (x, table[..., :32].clone(), table[..., :32].clone()), names="cos")
    yield Bad("unknown mode", (x, table, table.clone(), "diagonal"), names="mode")
    wide = make.normal((2, 1, 896))
    yield Bad("too wide", (make.normal((2, 1, 896)), wide, wide.clone()), names="896", strict=True)


CONTRACT = Contract(
    name="npu_rotary_mul",
    schemas=("npu::npu_rotary_mul",),
    formula="y = x · r1 + rot(x) · r2; rot negates and swaps the halves (half) or adjacent pairs (interleave).",
    dtypes=FLOATS,
    limits=(
        "r1 and r2 have the shape of x, or 1 in dimensions other than the last",
        "the last dimension is even and below 896",
        "rotate: a [D, D] matrix, then rot(x) = x @ rotate",
    ),
    tolerance=rounded(fp32=4e-7, atol=4e-6, why="two products and a sum"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 4.1: vendor documentation and sources",
)
