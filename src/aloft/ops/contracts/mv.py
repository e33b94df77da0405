"""Contract of torch.mv."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

SHAPES = ((1, 1), (17, 31), (130, 257), (64, 1), (0, 8), (5, 0))  # rows, columns


def _cases() -> Iterator[Case]:
    make = Maker("mv")
    for dtype, (rows, columns) in product(products.DTYPES, SHAPES):
        args = (make.normal((rows, columns), dtype), make.normal((columns,), dtype))
        yield Case(f"{rows}x{columns}, {dtype}", args, dtype=dtype)
    matrix, vector = make.normal((9, 24)), make.normal((24,))
    for label, view in layouts(matrix):
        yield Case(f"matrix {label}", (view, vector))
    yield Case("strided vector", (matrix, make.normal((24, 3))[:, 1]))


def _bad() -> Iterator[Bad]:
    make = Maker("mv, bad")
    matrix = make.normal((4, 6))
    yield Bad("lengths differ", (matrix, make.normal((5,))), names="vec")
    yield Bad("no vector", (matrix, make.normal((6, 1))), names="vector")
    yield Bad("dtypes differ", (matrix, make.normal((6,), torch.float16)), names="Half")


CONTRACT = Contract(
    name="mv",
    schemas=("aten::mv",),
    formula="out = self @ vec.",
    dtypes=products.DTYPES,
    limits=products.LIMITS,
    tolerance=products.TOLERANCE,
    reference=torch.mv,
    cases=_cases,
    bad=_bad,
    source="PyTorch; contracts 1.6",
)
