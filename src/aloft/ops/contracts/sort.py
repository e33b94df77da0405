"""Contract of sort and argsort."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)
_STABLE = "aten::sort.stable"


def _reference(
    x: torch.Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() == 0:
        return x, torch.zeros((), dtype=torch.int64)
    lines = x.movedim(dim, -1)
    order = torch.empty(lines.shape, dtype=torch.int64)
    for at, line in zip(order.view(-1, lines.size(-1)), lines.reshape(-1, lines.size(-1)).tolist(), strict=True):
        # Python's sort is stable, also in reverse; NaN goes to the far end.
        keys = [(value != value, value if value == value else 0) for value in line]
        at.copy_(torch.tensor(sorted(range(len(line)), key=keys.__getitem__, reverse=descending)))
    indices = order.movedim(-1, dim)
    return x.gather(dim, indices), indices


def _operand(make: Maker, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return make.bools(shape)
    return make.normal(shape, dtype, 1.0 if dtype.is_floating_point else 30.0)  # integers have ties


def _cases() -> Iterator[Case]:
    make = Maker("sort")
    calls: dict[str, tuple[tuple[int, ...], int, bool]] = {
        "aligned": ((4, 64), -1, False),
        "odd, descending": ((3, 5, 67), 2, True),
        "middle dimension": ((3, 37, 5), 1, False),
        "long": ((2, 3001), -1, False),
        "long, descending": ((1, 3001), -1, True),
        "one element": ((1, 1), -1, False),
        "scalar": ((), 0, False),
        "no rows": ((0, 64), -1, False),
    }
    for dtype in DTYPES:
        for label, (shape, dim, descending) in calls.items():
            kwargs = {"stable": True, "dim": dim, "descending": descending}
            yield Case(f"{label}, {dtype}", (_operand(make, shape, dtype),), kwargs, dtype=dtype, form=_STABLE)
        for label, x in layouts(_operand(make, (5, 30), dtype)):
            yield Case(f"{label}, {dtype}", (x,), {"stable": True}, dtype=dtype, form=_STABLE)
    special = make.normal((4, 300))
    special[0, 3], special[1, 4], special[1, 5] = float("nan"), float("inf"), -float("inf")
    special[2, ::2], special[2, 1::2], special[3, ::3] = 0.0, -0.0, float("nan")
    for descending in (False, True):
        kwargs = {"stable": True, "descending": descending}
        label = f"NaN, infinities, zeros of both signs, descending {descending}"
        yield Case(label, (special,), kwargs, form=_STABLE)
        yield Case(f"{label}, bfloat16", (special.bfloat16(),), kwargs, dtype=torch.bfloat16, form=_STABLE)


def _bad() -> Iterator[Bad]:
    x = Maker("sort, bad").normal((4, 8))
    yield Bad("dim beyond the last", (x,), {"stable": True, "dim": 2}, names="dim", form=_STABLE)
    yield Bad("dim before the first", (x,), {"stable": True, "dim": -3}, names="dim", form=_STABLE)


CONTRACT = Contract(
    name="sort",
    schemas=("aten::sort", "aten::sort.stable"),
    formula="the elements along dim in ascending (or descending) order, and their indices.",
    dtypes=DTYPES,
    limits=(
        "NaN is greater than every number; -0 equals 0",
        "equal elements keep their order, ascending and descending",
        "indices are int64",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
