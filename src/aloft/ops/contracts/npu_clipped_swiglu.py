"""Contract of npu_clipped_swiglu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Masked
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor | Masked:
    dim %= x.dim()
    flat = x.flatten(dim)
    a, b = (flat[..., ::2], flat[..., 1::2]) if interleaved else flat.chunk(2, -1)
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    y = a * torch.sigmoid(alpha * a) * (b + bias)
    shape = list(x.shape)
    shape[dim] //= 2
    if group_index is None:
        return y.reshape(shape)
    rows = torch.arange(y[..., 0].numel()).reshape(*y.shape[:-1], 1) < int(group_index.sum())
    return Masked(y.reshape(shape), rows.expand(y.shape).reshape(shape))


def _cases() -> Iterator[Case]:
    make = Maker("npu_clipped_swiglu")
    for dtype in FLOATS:
        for label, shape, options in (
            ("interleaved", (4, 64), {}),
            ("halves", (4, 64), {"interleaved": False}),
            ("unaligned", (3, 5, 74), {}),
            ("unaligned halves", (3, 5, 74), {"interleaved": False}),
            ("plain clamp", (4, 66), {"alpha": 1.0, "bias": 0.0, "limit": 3.0, "interleaved": False}),
            ("halves of a middle dimension", (3, 8, 5), {"dim": 1, "interleaved": False}),
        ):
            arguments: dict[str, Any] = dict(options)
            yield Case(f"{label}, {dtype}", (make.normal(shape, dtype, scale=5.0),), arguments, dtype=dtype)
        counts = torch.tensor([2, 0, 1])
        yield Case(f"groups, {dtype}", (make.normal((5, 32), dtype),), {"group_index": counts}, dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x,), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_clipped_swiglu, bad")
    x = make.normal((4, 8))
    yield Bad("odd dimension", (make.normal((4, 7)),), names="7")
    yield Bad("more rows than there are", (x,), {"group_index": torch.tensor([3, 2])}, names="group_index")
    yield Bad("negative count", (x,), {"group_index": torch.tensor([3, -1])}, names="group_index")


CONTRACT = Contract(
    name="npu_clipped_swiglu",
    schemas=("npu::npu_clipped_swiglu",),
    formula="a = min(a, limit), b = clamp(b, -limit, limit); y = a · sigmoid(alpha · a) · (b + bias).",
    dtypes=FLOATS,
    limits=(
        "a and b are the even and odd elements (interleaved) or the halves of the dimensions from dim on",
        "group_index holds int64 counts; only that many rows are computed",
    ),
    tolerance=rounded(atol=1e-6, fp32=4e-6, why="the exponential"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("rows past the sum of group_index",),
    source="contracts 3.2: vendor documentation",
)
