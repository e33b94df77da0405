"""Contract of index_select and gather."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts, sliced

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)
_SELECT, _GATHER = "aten::index_select", "aten::gather"


def _reference(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool | None = None) -> torch.Tensor:
    x1, index1 = x.reshape(x.shape or (1,)), index.reshape(index.shape or (1,)).long()
    dim %= x1.dim()
    if sparse_grad is None:  # index_select
        places = index1.view([-1 if d == dim else 1 for d in range(x1.dim())])
        shape = [index1.numel() if d == dim else n for d, n in enumerate(x1.shape)]
        return _pick(x1, dim, places.expand(shape)).view(shape if x.dim() else ())
    return _pick(x1, dim, index1).view(index.shape)


def _pick(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """x at the coordinates of index, dim replaced by it: by arithmetic on flat offsets."""
    flat = torch.zeros(index.shape, dtype=torch.int64)
    for d, n in enumerate(x.shape):
        view = [-1 if e == d else 1 for e in range(x.dim())]
        flat = flat * n + (index if d == dim else torch.arange(index.size(d)).view(view))
    return x.reshape(-1)[flat]


def _operand(make: Maker, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return make.bools(shape)
    return make.normal(shape, dtype, 1.0 if dtype.is_floating_point else 30.0)


def _cases() -> Iterator[Case]:
    make = Maker("index_select")
    selections: dict[str, tuple[tuple[int, ...], int, int]] = {
        "rows": ((7, 64), 0, 11),
        "odd": ((3, 5, 67), 2, 9),
        "middle dimension": ((3, 37, 5), 1, 50),
        "no index": ((4, 8), 0, 0),
        "no columns": ((4, 0), 0, 3),
        "vector": ((130,), -1, 12),
        "many rows": ((500, 96), 0, 300),
    }
    for dtype in DTYPES:
        for label, (shape, dim, count) in selections.items():
            index = make.integers((count,), 0, shape[dim], torch.int32 if label == "odd" else torch.int64)
            yield Case(
                f"select, {label}, {dtype}", (_operand(make, shape, dtype), dim, index), dtype=dtype, form=_SELECT
            )
        for label, x in layouts(_operand(make, (6, 48), dtype)):
            index = make.integers((9,), 0, 6)
            yield Case(f"select, {label}, {dtype}", (x, 0, index), dtype=dtype, form=_SELECT)
        for label, x in layouts(_operand(make, (6, 48), dtype)):
            index = make.integers((5, 50), 0, 48)
            kwargs = {"sparse_grad": False}
            yield Case(f"gather, {label}, {dtype}", (x, 1, index), kwargs, dtype=dtype, form=_GATHER)
    x = make.normal((4, 9, 7))
    for dim, shape in ((0, (2, 9, 5)), (1, (4, 20, 7)), (-1, (3, 9, 1))):
        index = make.integers(shape, 0, x.size(dim))
        yield Case(f"gather, smaller index, dim {dim}", (x, dim, index), {"sparse_grad": False}, form=_GATHER)
    scattered = sliced(make.integers((9,), 0, 4))
    yield Case("select, strided index", (x, 0, scattered), form=_SELECT)
    scalar = torch.tensor(3.0)
    yield Case("select, scalar", (scalar, 0, torch.tensor([0])), form=_SELECT)
    yield Case("gather, scalar", (scalar, 0, torch.tensor(0)), {"sparse_grad": False}, form=_GATHER)
    yield Case("gather, empty index", (x, 0, torch.empty(0, 9, 7).long()), {"sparse_grad": False}, form=_GATHER)


def _bad() -> Iterator[Bad]:
    x = Maker("index_select, bad").normal((4, 8))
    kwargs = {"sparse_grad": False}
    yield Bad("select, index too large", (x, 0, torch.tensor([0, 4])), names="index", form=_SELECT)
    yield Bad("select, negative index", (x, 0, torch.tensor([-1])), names="index", form=_SELECT)
    yield Bad("select, floating index", (x, 0, torch.tensor([0.0])), names="index", form=_SELECT)
    yield Bad("select, dim beyond the last", (x, 2, torch.tensor([0])), names="dim", form=_SELECT)
    yield Bad("gather, index too large", (x, 1, torch.tensor([[8]])), kwargs, names="index", form=_GATHER)
    yield Bad("gather, negative index", (x, 1, torch.tensor([[-1]])), kwargs, names="index", form=_GATHER)
    yield Bad("gather, index of other rank", (x, 1, torch.tensor([0])), kwargs, names="index", form=_GATHER)
    yield Bad("gather, more rows than x", (x, 1, torch.zeros(5, 1).long()), kwargs, names="index", form=_GATHER)


CONTRACT = Contract(
    name="index_select",
    schemas=(_SELECT, _GATHER),
    formula="index_select: y[.., j, ..] = x[.., index[j], ..]; gather: y[.., j, ..] = x[.., index[.., j, ..], ..].",
    dtypes=DTYPES,
    limits=(
        "index is int64 or int32 (gather: int64) in [0, length of the dimension); negative values are refused",
        "index_select: index has one dimension; gather: index has those of x and is no larger outside dim",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
