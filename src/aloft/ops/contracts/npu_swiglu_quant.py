"""Contract of npu_swiglu_quant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Masked, Tolerance
from aloft.ops.contracts.npu_add_rms_norm_quant import OFF_BY_ONE
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import near_dynamic, saturate
from aloft.ops.rounding import FLOATS


def by_row(table: torch.Tensor, group: torch.Tensor, rows: int) -> torch.Tensor:
    """[G, H] or [G] -> [rows, H or 1]: of each row's group (the last one for rows of none)."""
    wide = table.reshape(-1, 1) if table.dim() == 1 else table
    if wide.shape[0] == 1:
        return wide.expand(rows, -1)
    return wide[group.clamp_max(wide.shape[0] - 1)]


def _reference(
    x: torch.Tensor,
    smooth_scales: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
) -> tuple[torch.Tensor | Masked, torch.Tensor | Masked | None]:
    left, right = x.chunk(2, -1)
    act, gate = (left, right) if activate_left else (right, left)
    v = act * act.sigmoid() * gate
    rows = v[..., 0].numel()
    flat, group, used = v.reshape(rows, -1), torch.zeros(rows, dtype=torch.int64), rows
    if group_index is not None:
        ends = group_index.cumsum(0) if group_list_type else group_index
        group, used = torch.searchsorted(ends.to(torch.int64), torch.arange(rows), right=True), int(ends[-1])
    if smooth_scales is not None:
        flat = flat * by_row(smooth_scales, group, rows)
    defined = torch.arange(rows) < used
    if quant_mode == 0:
        value = flat if offsets is None else flat + by_row(offsets, group, rows)
        y = saturate(value, -128, 127, torch.int8).reshape(v.shape)
        return Masked(y, defined.reshape(*v.shape[:-1], 1)), None
    y, scale = near_dynamic(flat)
    shape = v.shape[:-1]
    whole = Masked(y.reshape(v.shape), defined.reshape(*shape, 1))
    return whole, Masked(scale.reshape(shape), defined.reshape(shape))


def _cases() -> Iterator[Case]:
    make = Maker("npu_swiglu_quant")
    for dtype in FLOATS:
        returns = (torch.int8, torch.float32)
        for label, shape in (("aligned", (4, 128)), ("unaligned", (3, 5, 76)), ("wide", (2, 8192))):
            x, h = make.normal(shape, dtype, scale=3.0), shape[-1] // 2
            for left in (False, True):
                call = {"activate_left": left, "quant_mode": 1}
                yield Case(f"{label}, left {left}, {dtype}", (x,), call, dtype=dtype, returns=returns)
            smooth: dict[str, Any] = {"smooth_scales": make.uniform((1, h), low=0.5, high=2.0), "quant_mode": 1}
            if len(shape) == 2:
                yield Case(f"{label}, smooth, {dtype}", (x,), smooth, dtype=dtype, returns=returns)
                fixed = {"smooth_scales": make.uniform((1, h), low=5.0, high=20.0), "offsets": make.normal((1, h))}
                yield Case(f"{label}, static, {dtype}", (x,), fixed, dtype=dtype, returns=returns)
        for label, x in layouts(make.normal((6, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x,), {"quant_mode": 1}, dtype=dtype, returns=returns)
        for kind, groups in ((0, [2, 2, 9]), (1, [2, 0, 7])):
            grouped: dict[str, Any] = {
                "smooth_scales": make.uniform((3, 32), low=0.5, high=2.0),
                "group_index": torch.tensor(groups, dtype=torch.int32),
                "quant_mode": 1,
                "group_list_type": kind,
            }
            x = make.normal((11, 64), dtype)
            yield Case(f"groups of type {kind}, {dtype}", (x,), grouped, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_swiglu_quant, bad")
    x = make.normal((4, 64), torch.bfloat16)
    yield Bad("integers", (x.int(),), {"quant_mode": 1}, names="x")
    short = {"smooth_scales": torch.ones(1, 7), "quant_mode": 1}
    yield Bad("smooth scales too short", (x,), short, names="smooth_scales")
    yield Bad("static without scales", (x,), {}, names="smooth_scales")


CONTRACT = Contract(
    name="npu_swiglu_quant",
    schemas=("npu::npu_swiglu_quant",),
    formula="v = silu(right half) · left half (activate_left: the other way round); quant_mode 1: by row v · smooth, "
    "scale = max / 127; quant_mode 0: v · smooth + offset.",
    dtypes=FLOATS,
    limits=(
        "the last dimension is even, at most 8192; int8 output only on the virtual NPU",
        "smooth_scales and offsets [groups, H] or [groups]; group_index int32: row ends (type 0) or counts (type 1)",
    ),
    tolerance={torch.int8: OFF_BY_ONE, torch.float32: Tolerance(4e-6, 1e-9, "the exponential, a few fp32 steps")},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("rows behind the last group", "scale with quant_mode 0"),
    source="contracts 3.3: vendor documentation",
)
