"""Contract of topk."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)


def _reference(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    line = x if x.dim() else x.view(1)
    values, indices = line.sort(stable=True, dim=dim, descending=largest)
    values, indices = values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
    return (values, indices) if x.dim() else (values[0], indices[0])


def _cases() -> Iterator[Case]:
    make = Maker("topk")
    calls: dict[str, tuple[tuple[int, ...], int, int, bool]] = {
        "aligned": ((4, 64), 8, -1, True),
        "odd, smallest": ((3, 5, 67), 5, 2, False),
        "middle dimension": ((3, 37, 5), 9, 1, True),
        "whole line": ((2, 33), 33, -1, True),
        "one": ((6, 200), 1, -1, True),
        "none": ((6, 20), 0, -1, True),
        "scalar": ((), 1, 0, True),
        "no rows": ((0, 64), 4, -1, True),
    }
    for dtype in DTYPES:
        for label, (shape, k, dim, largest) in calls.items():
            x = make.distinct(shape, dtype, dim) if shape else torch.ones((), dtype=dtype)
            yield Case(f"{label}, {dtype}", (x, k, dim, largest, True), dtype=dtype)
        for label, x in layouts(make.distinct((5, 130), dtype)):
            yield Case(f"{label}, {dtype}", (x, 6, -1, True, True), dtype=dtype)
    for k in (1, 50, 1024, 30000):
        yield Case(f"vocabulary, k {k}", (make.distinct((2, 49152)), k, -1, True, True))
    special = make.distinct((3, 70))
    special[0, 3], special[1, 4], special[1, 5] = float("nan"), float("inf"), -float("inf")
    yield Case("NaN and infinities, largest", (special, 3, 1, True, True))
    yield Case("NaN and infinities, smallest", (special, 70, 1, False, True))


def _bad() -> Iterator[Bad]:
    x = Maker("topk, bad").normal((4, 8))
    yield Bad("k larger than the line", (x, 9, -1, True, True), names="k")
    yield Bad("negative k", (x, -1, -1, True, True), names="k")
    yield Bad("dim beyond the last", (x, 2, 2, True, True), names="dim")


CONTRACT = Contract(
    name="topk",
    schemas=("aten::topk",),
    formula="the k largest (or smallest) elements along dim, in order, and their indices.",
    dtypes=DTYPES,
    limits=(
        "0 <= k <= length of the line; indices are int64",
        "NaN is greater than every number",
        "results come in order also with sorted=False",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("which of equal elements is taken (here: the one with the lower index)",),
    source="torch's definition",
)
