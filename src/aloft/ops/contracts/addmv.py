"""Contract of torch.addmv."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts.mv import SHAPES
from aloft.ops.generate import Maker, transposed

FACTORS: tuple[dict[str, float], ...] = ({}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0.0})


def _reference(
    addend: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    # torch's own CPU kernel forgets to broadcast where the matrix is empty
    return alpha * (matrix @ vector) + (beta * addend if beta else 0)


def _cases() -> Iterator[Case]:
    make = Maker("addmv")
    for dtype, (rows, columns), kwargs in product(products.DTYPES, SHAPES, FACTORS):
        matrix, vector = make.normal((rows, columns), dtype), make.normal((columns,), dtype)
        for length in dict.fromkeys((rows, 1)):
            label = f"{rows}x{columns}, self [{length}], {kwargs}, {dtype}"
            yield Case(label, (make.normal((length,), dtype), matrix, vector), kwargs, dtype=dtype)
    matrix, vector = make.normal((9, 24)), make.normal((24,))
    yield Case("beta 0 with NaN in self", (torch.full((9,), float("nan")), matrix, vector), {"beta": 0.0})
    yield Case("transposed", (make.normal((9, 2))[:, 0], transposed(matrix), vector))


def _bad() -> Iterator[Bad]:
    make = Maker("addmv, bad")
    addend, matrix, vector = make.normal((4,)), make.normal((4, 6)), make.normal((6,))
    yield Bad("lengths differ", (addend, matrix, vector[:5].clone()), names="vec")
    yield Bad("self does not broadcast", (addend[:3].clone(), matrix, vector), names="size")
    yield Bad("dtypes differ", (addend, matrix, vector.half()), names="Half")


CONTRACT = Contract(
    name="addmv",
    schemas=("aten::addmv",),
    formula="out = beta * self + alpha * (mat @ vec).",
    dtypes=products.DTYPES,
    limits=(*products.LIMITS, "beta = 0: self is not read", "self broadcasts to the result"),
    tolerance=products.TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="PyTorch; contracts 1.6",
)
