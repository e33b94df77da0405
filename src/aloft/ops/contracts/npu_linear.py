"""Contract of npu_linear."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker


def _cases() -> Iterator[Case]:
    make = Maker("npu_linear")
    for dtype in products.DTYPES:
        for m, n, k in products.SHAPES:
            x, weight, bias = make.normal((m, k), dtype), make.normal((n, k), dtype), make.normal((n,), dtype)
            yield Case(f"{m}x{n}x{k}, {dtype}", (x, weight), dtype=dtype)
            yield Case(f"{m}x{n}x{k}, bias, {dtype}", (x, weight, bias), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_linear, bad")
    yield Bad("inner dimensions", (make.normal((4, 6)), make.normal((3, 5))), names="mat2")


CONTRACT = Contract(
    name="npu_linear",
    schemas=("npu::npu_linear",),
    formula="out = input @ weight^T + bias, two-dimensional.",
    dtypes=products.DTYPES,
    limits=products.LIMITS,
    tolerance=products.TOLERANCE,
    reference=torch.nn.functional.linear,
    cases=_cases,
    bad=_bad,
    source="contracts 7.14: vendor sources",
)
