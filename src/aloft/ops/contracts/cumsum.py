"""Contract of cumsum."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import rounded

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)


def _reference(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if dtype is not None and not dtype.is_floating_point:
        return x.to(dtype).cumsum(dim)
    wanted = torch.float64 if x.dtype.is_floating_point or dtype is not None else torch.int64
    return x.to(wanted).cumsum(dim)


def _operand(make: Maker, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return make.bools(shape)
    # Positive values: the error of a sum is relative to the sum of magnitudes.
    return make.uniform(shape, dtype) if dtype.is_floating_point else make.integers(shape, -9, 9, dtype)


def _cases() -> Iterator[Case]:
    make = Maker("cumsum")
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "aligned": ((4, 64), -1),
        "odd": ((3, 5, 67), 2),
        "middle dimension": ((3, 37, 70), 1),
        "one element": ((1, 1), -1),
        "scalar": ((), 0),
        "no rows": ((0, 64), -1),
        "no columns": ((3, 0), 1),
        "long": ((1, 5000), -1),
    }
    for dtype in DTYPES:
        for label, (shape, dim) in shapes.items():
            if label == "long" and dtype == torch.float16:
                continue  # nothing new, and near the largest number
            yield Case(f"{label}, {dtype}", (_operand(make, shape, dtype), dim), dtype=dtype)
        for label, x in layouts(_operand(make, (5, 48), dtype)):
            yield Case(f"{label}, {dtype}", (x, -1), dtype=dtype)
    x = make.uniform((3, 40), torch.bfloat16)
    yield Case("bfloat16 summed in float32", (x, 1), {"dtype": torch.float32})
    integers = make.integers((3, 40), 0, 9, torch.int32)
    yield Case("int32 summed in float32", (integers, 1), {"dtype": torch.float32})
    yield Case("int32 summed in int64", (integers, 0), {"dtype": torch.int64}, dtype=torch.int64)


def _bad() -> Iterator[Bad]:
    x = Maker("cumsum, bad").normal((4, 8))
    yield Bad("dim beyond the last", (x, 2), names="dim")
    yield Bad("dim before the first", (x, -3), names="dim")


CONTRACT = Contract(
    name="cumsum",
    schemas=("aten::cumsum",),
    formula="y[i] = x[0] + … + x[i] along dim.",
    dtypes=DTYPES,
    limits=(
        "dtype: x is converted to it before the sum; without it integers and bool give int64",
        "integers wrap on overflow",
        "dim may be negative",
    ),
    tolerance={**rounded(1, 2e-6, 0.0, "a running sum"), torch.int64: EXACT},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
