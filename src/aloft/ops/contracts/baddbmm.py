"""Contract of torch.baddbmm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, transposed

SHAPES = ((4, 16, 32, 64), (3, 5, 19, 67), (1, 1, 7, 1), (2, 0, 3, 8), (2, 4, 3, 0))  # batch, m, n, k
FACTORS: tuple[dict[str, float], ...] = ({}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0.0})


def _cases() -> Iterator[Case]:
    make = Maker("baddbmm")
    for dtype, (batch, m, n, k) in product(products.DTYPES, SHAPES):
        x, y = make.normal((batch, m, k), dtype), make.normal((batch, k, n), dtype)
        for shape, kwargs in product(dict.fromkeys(((batch, m, n), (m, n), (1, 1, n))), FACTORS):
            label = f"{batch}x{m}x{n}x{k}, self {shape}, {kwargs}, {dtype}"
            yield Case(label, (make.normal(shape, dtype), x, y), kwargs, dtype=dtype)
    x, y = make.normal((2, 3, 8)), make.normal((2, 8, 5))
    yield Case("beta 0 with NaN in self", (torch.full((2, 3, 5), float("nan")), x, y), {"beta": 0.0})
    yield Case("everything transposed", (transposed(make.normal((2, 3, 5))), transposed(x), transposed(y)))


def _bad() -> Iterator[Bad]:
    make = Maker("baddbmm, bad")
    addend, x, y = make.normal((2, 4, 3)), make.normal((2, 4, 8)), make.normal((2, 8, 3))
    yield Bad("inner dimensions", (addend, x, y[:, :7]), names="batch2")
    yield Bad("self does not broadcast", (addend[:, :3], x, y), names="self")
    yield Bad("dtypes differ", (addend, x, y.half()), names="Half")


CONTRACT = Contract(
    name="baddbmm",
    schemas=("aten::baddbmm",),
    formula="out[b] = beta * self[b] + alpha * (batch1[b] @ batch2[b]).",
    dtypes=products.DTYPES,
    limits=(*products.LIMITS, "beta = 0: self is not read", "self broadcasts to the result"),
    tolerance=products.TOLERANCE,
    reference=torch.baddbmm,
    cases=_cases,
    bad=_bad,
    source="PyTorch; contracts 1.6",
)
