"""Contract of torch.bmm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts, transposed


def _cases() -> Iterator[Case]:
    make = Maker("bmm")
    for dtype in products.DTYPES:
        for batch, m, n, k in ((1, 1, 1, 1), (4, 6, 19, 33), (40, 1, 64, 65), (2, 70, 130, 100), (3, 1, 5, 16)):
            x, y = make.normal((batch, m, k), dtype), make.normal((batch, k, n), dtype)
            yield Case(f"{batch}x{m}x{n}x{k}, {dtype}", (x, y), dtype=dtype)
            yield Case(f"{batch}x{m}x{n}x{k}, right transposed, {dtype}", (x, transposed(y)), dtype=dtype)
        x, y = make.normal((3, 5, 40), dtype), make.normal((3, 40, 24), dtype)
        for label, view in layouts(x):
            yield Case(f"left {label}, {dtype}", (view, y), dtype=dtype)
        yield Case(f"right the same for all, {dtype}", (x, y[:1].expand(3, 40, 24)), dtype=dtype)
        heads = make.normal((5, 3, 40), dtype).transpose(0, 1)
        yield Case(f"heads of packed rows, {dtype}", (heads, y), dtype=dtype)
        for shapes in (((0, 2, 3), (0, 3, 4)), ((2, 0, 3), (2, 3, 4)), ((2, 3, 0), (2, 0, 4))):
            yield Case(f"empty {shapes}, {dtype}", tuple(make.normal(s, dtype) for s in shapes), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("bmm, bad")
    x = make.normal((2, 4, 6))
    yield Bad("batches differ", (x, make.normal((3, 6, 2))), names="batch")
    yield Bad("inner dimensions", (x, make.normal((2, 5, 2))), names="mat2")
    yield Bad("two dimensions", (x[0], make.normal((2, 6, 2))), names="3D")


CONTRACT = Contract(
    name="bmm",
    schemas=("aten::bmm",),
    formula="out[b] = self[b] @ mat2[b].",
    dtypes=products.DTYPES,
    limits=products.LIMITS,
    tolerance=products.TOLERANCE,
    reference=torch.bmm,
    cases=_cases,
    bad=_bad,
    source="PyTorch; contracts 1.6",
)
