"""Contract of argmax and argmin, and of max and min along a dimension."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
FORMS = {"argmax": "aten::argmax", "argmin": "aten::argmin", "max": "aten::max.dim", "min": "aten::min.dim"}


def _first(x: torch.Tensor, dim: int, greatest: bool) -> torch.Tensor:
    """Index of the first extreme element along dim (kept), a NaN before all; by comparison, not by torch.argmax."""
    wide = x.double()
    nan = wide.isnan()
    top = torch.where(nan, -torch.inf if greatest else torch.inf, wide)
    top = top.amax(dim, keepdim=True) if greatest else top.amin(dim, keepdim=True)
    wins = torch.where(nan.any(dim, keepdim=True), nan, wide == top)
    places = torch.arange(x.size(dim)).view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
    return torch.where(wins, places, x.size(dim)).amin(dim, keepdim=True)


def _reference(x: torch.Tensor, dim: int | None, keepdim: bool, form: str) -> Any:
    greatest = "max" in form
    line = x.reshape(-1) if dim is None or x.dim() == 0 else x
    along = 0 if dim is None or x.dim() == 0 else dim
    index = _first(line, along, greatest)
    value = line.gather(along, index)
    if x.dim() == 0:
        index, value = index[0], value[0]
    elif dim is None:
        index = index.view([1] * x.dim()) if keepdim else index[0]
    elif not keepdim:
        index, value = index.squeeze(dim), value.squeeze(dim)
    return index if "arg" in form else (value, index)


def _case(form: str, label: str, x: torch.Tensor, dim: int | None, keepdim: bool) -> Case:
    reference = partial(_reference, form=form)
    return Case(f"{form}, {label}", (x, dim, keepdim), dtype=x.dtype, form=FORMS[form], reference=reference)


def _operand(make: Maker, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return make.normal(shape, dtype)
    return make.integers(shape, 0 if dtype == torch.uint8 else -50, 50, dtype)  # with ties


def _cases() -> Iterator[Case]:
    make = Maker("argmax")
    shapes: dict[str, tuple[tuple[int, ...], int | None]] = {
        "aligned": ((4, 64), -1),
        "odd": ((3, 5, 67), 2),
        "middle dimension": ((3, 37, 5), 1),
        "whole tensor": ((7, 11), None),
        "one element": ((1, 1), -1),
        "scalar": ((), 0),
        "no rows": ((0, 64), -1),
        "vocabulary": ((2, 49152), -1),
    }
    for dtype in DTYPES:
        for label, (shape, dim) in shapes.items():
            for form in FORMS:
                if dim is None and "arg" not in form:
                    continue
                yield _case(form, f"{label}, {dtype}", _operand(make, shape, dtype), dim, label == "odd")
        for label, x in layouts(_operand(make, (5, 130), dtype)):
            yield _case("argmax", f"{label}, {dtype}", x, -1, False)
            yield _case("min", f"{label}, {dtype}", x, -1, True)
    special = make.normal((6, 133))
    special[0, 3], special[1, 4], special[1, 70], special[2, :], special[3, 90] = (
        float("nan"),
        float("inf"),
        float("inf"),
        -float("inf"),
        -float("inf"),
    )
    special[4], special[4, 5], special[5], special[5, 128:] = 0.0, -0.0, 1.0, float("nan")
    for form in FORMS:
        yield _case(form, "NaN, infinities, ties and zeros", special, 1, False)
        yield _case(form, "the same in bfloat16", special.bfloat16(), 1, False)


def _bad() -> Iterator[Bad]:
    x = Maker("argmax, bad").normal((4, 8))
    for name, form in FORMS.items():
        yield Bad(f"{name}, dim beyond the last", (x, 2, False), names="dim", form=form)
        yield Bad(f"{name}, nothing to choose from", (x[:, :0], 1, False), names="dim", form=form)


CONTRACT = Contract(
    name="argmax",
    schemas=tuple(FORMS.values()),
    formula="argmax, argmin: index of the first extreme element along dim, or of the flattened tensor; "
    "max, min with dim: that element and its index.",
    dtypes=DTYPES,
    limits=(
        "indices are int64; of equal elements the first counts, and -0 equals 0",
        "NaN is greater than every number for max, and smaller for min: the first NaN is found either way",
        "dim may be negative; the lines along dim must not be empty",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=partial(_reference, form="argmax"),
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
