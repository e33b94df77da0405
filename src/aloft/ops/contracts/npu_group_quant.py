"""Contract of npu_group_quant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import by_operand, store
from aloft.ops.rounding import FLOATS


def _reference(
    x: torch.Tensor,
    scale: torch.Tensor,
    group_index: torch.Tensor,
    offset: torch.Tensor | None = None,
    dst_dtype: Any = None,
) -> torch.Tensor:
    group = torch.searchsorted(group_index.to(torch.int64), torch.arange(x.shape[0]), right=True)
    v = x.float() * scale.float()[group]
    return store(v if offset is None else v + offset.float(), dst_dtype is torch.quint4x2)


def _cases() -> Iterator[Case]:
    make = Maker("npu_group_quant")
    for dtype in FLOATS:
        scale, ends = make.uniform((3, 40), dtype, 5.0, 30.0), torch.tensor([2, 2, 7], dtype=torch.int32)
        offset = torch.tensor([-3.5], dtype=dtype)
        for label, x in (("plain", make.normal((7, 40), dtype)), *layouts(make.normal((7, 40), dtype))):
            yield Case(f"{label}, {dtype}", (x, scale, ends))
            yield Case(f"{label}, offset, {dtype}", (x, scale, ends.long()), {"offset": offset})
            yield Case(f"{label}, int4, {dtype}", (x, scale, ends), {"dst_dtype": torch.quint4x2})


def _bad() -> Iterator[Bad]:
    x = Maker("npu_group_quant, bad").normal((4, 16))
    yield Bad("scale too short", (x, torch.ones(2, 8), torch.tensor([2, 4])), names="scale")
    yield Bad("rows left over", (x, torch.ones(2, 16), torch.tensor([2, 3])), names="group_index")


CONTRACT = Contract(
    name="npu_group_quant",
    schemas=("npu::npu_group_quant",),
    formula="y = sat(rint(x · scale[group of the row] + offset)).",
    dtypes=FLOATS,
    limits=("group_index: row ends, the last one the rows", "int8, or torch.quint4x2: packed int32"),
    tolerance={},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    widen=False,
    source="contracts 7.4: vendor documentation",
)
