"""Contract of torch.mm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts, transposed


def _cases() -> Iterator[Case]:
    make = Maker("mm")
    for dtype in products.DTYPES:
        for m, n, k in products.SHAPES:
            x, weight = make.normal((m, k), dtype), make.normal((k, n), dtype)
            for label, operand in (("", weight), (", weight column-major", transposed(weight))):
                yield Case(f"{m}x{n}x{k}{label}, {dtype}", (x, operand), dtype=dtype)
                nz = {"weight_format": products.NZ}
                yield Case(f"{m}x{n}x{k}{label}, NZ, {dtype}", (x, operand), nz, dtype=dtype)
        x, weight = make.normal((5, 40), dtype), make.normal((40, 24), dtype)
        for label, view in layouts(x):
            yield Case(f"left {label}, {dtype}", (view, weight), dtype=dtype)
        for label, view in layouts(weight):
            yield Case(f"right {label}, {dtype}", (x, view), dtype=dtype)
        for shapes in (((0, 8), (8, 3)), ((3, 8), (8, 0)), ((3, 0), (0, 4))):
            yield Case(f"empty {shapes}, {dtype}", tuple(make.normal(s, dtype) for s in shapes), dtype=dtype)
    special = make.normal((3, 32))
    special[0, 3], special[1, 4] = float("nan"), float("inf")
    yield Case("NaN and infinity", (special, make.normal((32, 20))))


def _bad() -> Iterator[Bad]:
    make = Maker("mm, bad")
    x = make.normal((4, 6))
    yield Bad("inner dimensions", (x, make.normal((5, 3))), names="mat2")
    yield Bad("three dimensions", (x[None], make.normal((6, 3))), names="matrix")
    yield Bad("dtypes differ", (x, make.normal((6, 3), torch.float16)), names="dtype")


CONTRACT = Contract(
    name="mm",
    schemas=("aten::mm",),
    formula="out = self @ mat2; mat2 may be FRACTAL_NZ, stored as it is or as its transpose.",
    dtypes=products.DTYPES,
    limits=products.LIMITS,
    tolerance=products.TOLERANCE,
    reference=products.without_format(torch.mm),
    cases=_cases,
    bad=_bad,
    call=products.with_weight_format(torch.mm, 1),
    source="PyTorch; contracts 1.4, 1.6",
)
