"""Contract of torch.nn.functional.linear."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops import products
from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts


def _reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = x @ weight.t()
    return y if bias is None else y + bias


def _twice(dtype: torch.dtype) -> Tolerance:
    """The product, of magnitude below 32 here, is rounded before the bias is added."""
    once = products.TOLERANCE[dtype]
    return Tolerance(once.rtol, once.atol + 32 * once.rtol, "product and sum are rounded, one after the other")


def _cases() -> Iterator[Case]:
    make = Maker("linear")
    for dtype in products.DTYPES:
        for m, n, k in products.SHAPES:
            x, weight, bias = make.normal((m, k), dtype), make.normal((n, k), dtype), make.normal((n,), dtype)
            yield Case(f"{m}x{n}x{k}, {dtype}", (x, weight), dtype=dtype)
            yield Case(f"{m}x{n}x{k}, bias, {dtype}", (x, weight, bias), dtype=dtype)
            nz = {"weight_format": products.NZ}
            yield Case(f"{m}x{n}x{k}, NZ, bias, {dtype}", (x, weight, bias), nz, dtype=dtype)
        weight, bias = make.normal((24, 40), dtype), make.normal((24,), dtype)
        for label, x in layouts(make.normal((2, 3, 40), dtype)):
            yield Case(f"three dimensions, {label}, {dtype}", (x, weight), dtype=dtype)
            args = (x, weight, bias)
            yield Case(f"three dimensions, {label}, bias, {dtype}", args, dtype=dtype, tolerance=_twice(dtype))
        x = make.normal((2, 3, 40), dtype)
        yield Case(f"three dimensions, bias, {dtype}", (x, weight, bias), dtype=dtype)
        yield Case(f"one vector, {dtype}", (make.normal((40,), dtype), weight), dtype=dtype)
        yield Case(f"no rows, {dtype}", (make.normal((0, 40), dtype), weight, bias), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("linear, bad")
    x, weight = make.normal((4, 8)), make.normal((3, 8))
    yield Bad("inner dimensions", (x, weight[:, :7].contiguous()), names="mat2")
    yield Bad("dtypes differ", (x, weight.half()), names="dtype")
    yield Bad("bias of another length", (x, weight, make.normal((5,))), names="size")


CONTRACT = Contract(
    name="linear",
    schemas=("aten::linear",),
    formula="out = input @ weightᵀ + bias; weight may be FRACTAL_NZ.",
    dtypes=products.DTYPES,
    limits=(
        *products.LIMITS,
        "input [..., k], weight [n, k], bias [n] or None",
        "an input of three or more dimensions that is not contiguous: the bias is added to the rounded product",
    ),
    tolerance=products.TOLERANCE,
    reference=products.without_format(_reference),
    cases=_cases,
    bad=_bad,
    call=products.with_weight_format(torch.nn.functional.linear, 1),
    source="PyTorch; contracts 1.4, 1.6",
)
