"""Contract of scatter and scatter_add, functional and in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts, shifted, sliced
from aloft.ops.rounding import rounded

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
FORMS = (
    "aten::scatter.src",
    "aten::scatter_.src",
    "aten::scatter.value",
    "aten::scatter_.value",
    "aten::scatter_add",
    "aten::scatter_add_",
)


def _reference(x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, form: str) -> torch.Tensor:
    y = x if form.partition(".")[0].endswith("_") else x.clone()
    y1, index1 = y.view(y.shape or (1,)), index.reshape(index.shape or (1,))
    values = source.reshape(source.shape or (1,)) if isinstance(source, torch.Tensor) else None
    for place in product(*map(range, index1.shape)):
        at = list(place)
        at[dim] = int(index1[place])
        value = source if values is None else values[place]
        y1[tuple(at)] = y1[tuple(at)] + value if "add" in form else value
    return y


def _case(form: str, label: str, x: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> Case:
    reference = partial(_reference, form=form)
    return Case(f"{form}, {label}", (x, dim, index, source), dtype=x.dtype, form=form, reference=reference)


def _operand(make: Maker, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return make.uniform(shape, dtype, 0.5, 2.0)
    return make.integers(shape, 0, 60, dtype)


def _distinct_index(make: Maker, shape: tuple[int, ...], dim: int, size: int) -> torch.Tensor:
    """No place is written twice: which of two writes remains is undefined."""
    order = torch.rand([size if d == dim else n for d, n in enumerate(shape)], generator=make.generator).argsort(dim)
    return order.narrow(dim, 0, shape[dim])


def _cases() -> Iterator[Case]:
    make = Maker("scatter")
    for dtype in DTYPES:
        for form in FORMS:
            add = "add" in form
            x, index = _operand(make, (6, 20), dtype), _distinct_index(make, (5, 9), 1, 20)
            if add:
                index = make.integers((5, 9), 0, 20)  # several sums per place
            source: Any = _operand(make, (6, 11), dtype) if ".value" not in form else 3
            yield _case(form, f"{dtype}", x, 1, index, source)
        for (label, x), form in zip(layouts(_operand(make, (6, 20), dtype)), FORMS[1::2] * 2, strict=False):
            index = _distinct_index(make, (5, 9), 1, 20)
            source = sliced(_operand(make, (6, 11), dtype)) if ".value" not in form else 2
            yield _case(form, f"{label}, {dtype}", x, 1, sliced(index), source)
    for form in FORMS:
        source = make.normal((3, 7, 5)) if ".value" not in form else -1.5
        index = _distinct_index(make, (3, 4, 5), 0, 7)
        yield _case(form, "first of three dimensions", make.normal((7, 7, 5)), 0, index, source)
        source = make.normal((0, 5)) if ".value" not in form else -1.5
        index = torch.empty(0, 5, dtype=torch.int64)
        yield _case(form, "empty index", make.normal((4, 5)), 0, index, source)
        source = torch.tensor(5.0) if ".value" not in form else 5.0
        yield _case(form, "scalar", torch.tensor(1.0), 0, torch.tensor(0), source)
    index = make.integers((2, 3000), 0, 4)
    long = make.uniform((2, 3000))
    yield _case(FORMS[5], "long sums", shifted(make.uniform((2, 5))), 1, index, long)


def _bad() -> Iterator[Bad]:
    make = Maker("scatter, bad")
    x, source = make.normal((4, 8)), make.normal((4, 3))
    index = torch.zeros(4, 3, dtype=torch.int64)
    for form in FORMS:
        value: Any = source if ".value" not in form else 1.0
        yield Bad(f"{form}, index too large", (x, 1, index + 8, value), names="index", form=form)
        yield Bad(f"{form}, negative index", (x, 1, index - 1, value), names="index", form=form)
        yield Bad(f"{form}, index of other rank", (x, 1, index[0], value), names="index", form=form)
        yield Bad(f"{form}, dim beyond the last", (x, 2, index, value), names="dim", form=form)
        if ".value" not in form:
            yield Bad(f"{form}, index larger than src", (x, 1, index, source[:, :2]), names="src", form=form)
            yield Bad(f"{form}, src of another dtype", (x, 1, index, source.half()), names="dtype", form=form)


CONTRACT = Contract(
    name="scatter",
    schemas=FORMS,
    formula="y = x; y[.., index[.., j, ..], ..] = src[.., j, ..] (scatter) or += (scatter_add).",
    dtypes=DTYPES,
    limits=(
        "index is int64 in [0, length of the dimension), no larger than src anywhere, nor than x outside dim",
        "src has the dtype of x",
        "scatter_add adds in order along dim",
    ),
    tolerance={
        **rounded(4, 3e-5, 0.0, "rounded after every addition, up to 3,000 in float32 and 4 in 16 bits"),
        torch.int64: EXACT,
    },
    undefined=("which of several scatter writes to one place remains",),
    reference=partial(_reference, form=FORMS[0]),
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
