"""Contract of embedding."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts, sliced

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _reference(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    rows = [weight[int(index)] for index in indices.reshape(-1)]
    return (torch.stack(rows) if rows else weight[:0]).view(*indices.shape, weight.size(1))


def _cases() -> Iterator[Case]:
    make = Maker("embedding")
    shapes: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
        "aligned": ((32, 64), (7,)),
        "odd": ((31, 67), (2, 3, 5)),
        "one row": ((1, 8), (4,)),
        "one index": ((9, 5), ()),
        "many": ((1000, 96), (300,)),
    }
    for dtype in DTYPES:
        for label, (table, shape) in shapes.items():
            weight = make.normal(table, dtype)
            for kind in (torch.int64, torch.int32):
                indices = make.integers(shape, 0, table[0], kind)
                yield Case(f"{label}, {kind} indices, {dtype}", (weight, indices), dtype=dtype)
        for label, weight in layouts(make.normal((20, 48), dtype)):
            yield Case(f"{label}, {dtype}", (weight, make.integers((9,), 0, 20)), dtype=dtype)
        indices = sliced(make.integers((3, 9), 0, 20))
        yield Case(f"strided indices, {dtype}", (make.normal((20, 48), dtype), indices), dtype=dtype)
    special = make.normal((3, 4))
    special[1] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    yield Case("NaN and infinities are copied", (special, torch.tensor([1, 0, 1])))
    yield Case("no indices", (special, torch.empty(0, 2, dtype=torch.int64)))


def _bad() -> Iterator[Bad]:
    weight = Maker("embedding, bad").normal((4, 8))
    yield Bad("index beyond the table", (weight, torch.tensor([0, 4])), names="index")
    yield Bad("negative index", (weight, torch.tensor([-1])), names="index")
    yield Bad("floating indices", (weight, torch.tensor([0.0])), names="indices")
    yield Bad("weight of one dimension", (weight[0], torch.tensor([0])), names="weight")


CONTRACT = Contract(
    name="embedding",
    schemas=("aten::embedding",),
    formula="y[..., :] = weight[indices[...], :].",
    dtypes=DTYPES,
    limits=(
        "weight [rows, columns]; indices int64 or int32 of any shape, in [0, rows)",
        "padding_idx, scale_grad_by_freq and sparse matter for the gradient only",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
