"""Contract of torch.dot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker


def _cases() -> Iterator[Case]:
    make = Maker("dot")
    for dtype, length in product(products.DTYPES, (0, 1, 2, 31, 256, 300)):
        args = (make.normal((length,), dtype), make.normal((length,), dtype))
        yield Case(f"{length}, {dtype}", args, dtype=dtype)
    x, y = make.normal((40, 3)), make.normal((80,))
    yield Case("strided", (x[:, 1], y[::2]))
    yield Case("with itself", (x[:, 1], x[:, 1]))


def _bad() -> Iterator[Bad]:
    make = Maker("dot, bad")
    x = make.normal((6,))
    yield Bad("lengths differ", (x, make.normal((5,))), names="tensor")
    yield Bad("one element", (x, make.normal((1,))), names="tensor")
    yield Bad("no vectors", (x[None], x[None]), names="vector")
    yield Bad("dtypes differ", (x, x.half()), names="Half")


CONTRACT = Contract(
    name="dot",
    schemas=("aten::dot",),
    formula="out = Σ self[i] · tensor[i].",
    dtypes=products.DTYPES,
    limits=products.LIMITS,
    tolerance=products.TOLERANCE,
    reference=torch.dot,
    cases=_cases,
    bad=_bad,
    source="PyTorch; contracts 1.6",
)
