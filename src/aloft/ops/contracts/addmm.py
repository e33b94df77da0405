"""Contract of torch.addmm, which torch.nn.functional.linear with a bias becomes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, transposed


def _cases() -> Iterator[Case]:
    make = Maker("addmm")
    for dtype in products.DTYPES:
        for m, n, k in products.SHAPES:
            x, weight, bias = make.normal((m, k), dtype), make.normal((k, n), dtype), make.normal((n,), dtype)
            yield Case(f"{m}x{n}x{k}, {dtype}", (bias, x, transposed(weight)), dtype=dtype)
            nz = {"weight_format": products.NZ}
            yield Case(f"{m}x{n}x{k}, NZ [k, n], {dtype}", (bias, x, weight), nz, dtype=dtype)
            yield Case(f"{m}x{n}x{k}, NZ [n, k], {dtype}", (bias, x, transposed(weight)), nz, dtype=dtype)
        x, weight, full = make.normal((5, 40), dtype), make.normal((40, 24), dtype), make.normal((5, 24), dtype)
        scaled = {"beta": 0.5, "alpha": -2.0}
        for label, addend in (("full", full), ("column", full[:, :1]), ("transposed", transposed(full))):
            yield Case(f"self {label}, scaled, {dtype}", (addend, x, weight), scaled, dtype=dtype)
        yield Case(f"no inner dimension, {dtype}", (full, x[:, :0], weight[:0]), scaled, dtype=dtype)
        yield Case(f"no rows, {dtype}", (full[:0], x[:0], weight), dtype=dtype)
    # beta = 0: self is not read
    nan = torch.full((5, 24), float("nan"))
    yield Case("beta 0 with NaN in self", (nan, make.normal((5, 8)), make.normal((8, 24))), {"beta": 0})


def _bad() -> Iterator[Bad]:
    make = Maker("addmm, bad")
    x, weight = make.normal((4, 6)), make.normal((6, 3))
    yield Bad("self does not broadcast", (make.normal((5, 3)), x, weight), names="size")
    yield Bad("inner dimensions", (make.normal((3,)), x, weight[:5]), names="mat2")


CONTRACT = Contract(
    name="addmm",
    schemas=("aten::addmm",),
    formula="out = beta * self + alpha * (mat1 @ mat2); mat2 may be FRACTAL_NZ.",
    dtypes=products.DTYPES,
    limits=(*products.LIMITS, "beta = 0: self is not read", "self broadcasts to the result"),
    tolerance=products.TOLERANCE,
    reference=products.without_format(torch.addmm),
    cases=_cases,
    bad=_bad,
    call=products.with_weight_format(torch.addmm, 2),
    source="PyTorch; contracts 1.4, 1.6",
)
