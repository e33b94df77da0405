"""Contract of npu_moe_init_routing_v2: rows of tokens in the order of their experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Masked, Tolerance
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import dynamic

F32, F16, BF16, I8, I32 = torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32


def _reference(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    active_num: int = -1,
    expert_num: int = -1,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: list[int] | None = None,
    row_idx_type: int = 0,
) -> tuple[Any, ...]:
    low, high = active_expert_range or (0, expert_num)
    flat, k = expert_idx.flatten().long(), expert_idx.shape[1]
    here = (flat >= low) & (flat < high)
    order = torch.where(here, flat, expert_num).sort(stable=True).indices[: int(here.sum())]
    rows = flat.numel() if active_num <= 0 else min(active_num, flat.numel())
    took = order[:rows] // k
    made, row_scale = x, scale
    if quant_mode == 1:
        made, row_scale = dynamic(x.float() if scale is None else x.float() * scale)
    expanded = torch.zeros(rows, x.shape[1], dtype=made.dtype)
    expanded[: len(took)] = made[took]
    filled = torch.arange(rows) < len(took)
    if row_idx_type == 0:
        place: Any = torch.full_like(flat, -1)
        place[order] = torch.arange(len(order))
        place = place.to(I32)
    else:
        place = torch.zeros_like(flat)
        place[: len(order)] = order
        place = Masked(place.to(I32), torch.arange(len(flat)) < len(order))
    counts: Any = torch.bincount(flat[here] - low, minlength=high - low)
    if expert_tokens_num_type == 0:
        counts = counts.cumsum(0)
    elif expert_tokens_num_type == 2:
        pairs = torch.zeros(expert_num, 2, dtype=torch.int64)
        used = counts.nonzero().flatten()
        pairs[: len(used)] = torch.stack((used + low, counts[used]), 1)
        counts = pairs
    scales = None
    if row_scale is not None:
        spread = torch.zeros(rows)
        spread[: len(took)] = row_scale[took]
        scales = Masked(spread, filled)
    return Masked(expanded, filled[:, None]), place, counts if expert_tokens_num_flag else None, scales


def _cases() -> Iterator[Case]:
    make = Maker("npu_moe_init_routing_v2")
    for tokens, k, experts, hidden in ((1, 2, 8, 64), (7, 3, 5, 37), (33, 8, 60, 128)):
        ids = make.integers((tokens, k), 0, experts, I32)
        ids[ids == 1] = 0  # an expert without tokens
        base: dict[str, Any] = {"expert_num": experts, "expert_tokens_num_flag": True}
        base["active_expert_range"] = [0, experts]
        for dtype in (F32, F16, BF16):
            x, size = make.normal((tokens, hidden), dtype), f"{tokens} x {k} of {experts}, {dtype}"
            for kind in (0, 1, 2):
                call = base | {"expert_tokens_num_type": kind}
                yield Case(f"{size}, counts {kind}", (x, ids), call, dtype)
            call = base | {"expert_tokens_num_type": 1}
            yield Case(f"{size}, part", (x, ids), call | {"active_expert_range": [1, 4]}, dtype)
            yield Case(f"{size}, scatter", (x, ids), call | {"row_idx_type": 1}, dtype)
            yield Case(f"{size}, some rows", (x, ids), call | {"active_num": tokens}, dtype)
            returns = (I8, I32, torch.int64, F32)
            yield Case(f"{size}, int8", (x, ids), call | {"quant_mode": 1}, dtype, returns)
            smooth = call | {"quant_mode": 1, "scale": make.uniform((1, hidden), low=0.5, high=2.0)}
            yield Case(f"{size}, int8, smoothed", (x, ids), smooth, dtype, returns)
            token = call | {"scale": make.uniform((tokens,))}
            yield Case(f"{size}, scales along", (x, ids), token, dtype, (dtype, I32, torch.int64, F32))
            for label, view in layouts(x):
                yield Case(f"{size}, {label}", (view, ids), call, dtype)
    rows = (make.integers((4, 16), -9, 9, I8), make.integers((4, 2), 0, 3, I32))
    yield Case(
        "int8 rows", rows, {"expert_num": 3, "expert_tokens_num_flag": True, "active_expert_range": [0, 3]}, dtype=I8
    )


def _bad() -> Iterator[Bad]:
    make = Maker("npu_moe_init_routing_v2, bad")
    x, ids = make.normal((4, 8), BF16), make.integers((4, 2), 0, 3, I32)
    call = {"expert_num": 3, "expert_tokens_num_flag": True, "active_expert_range": [0, 3]}
    yield Bad("an expert beyond the last", (x, ids + 2), call, names="expert_idx")
    yield Bad("capacity", (x, ids), call | {"drop_pad_mode": 1, "expert_capacity": 2}, names="drop_pad_mode")
    yield Bad("static quantisation", (x, ids), call | {"quant_mode": 0, "scale": torch.ones(1)})
    yield Bad("range", (x, ids), call | {"active_expert_range": [2, 9]}, names="range")


CONTRACT = Contract(
    name="npu_moe_init_routing_v2",
    schemas=("npu::npu_moe_init_routing_v2",),
    formula="pairs f = t · k + j of token t and its choice j, sorted by expert (stable): expanded_x[i] = x[f_i div k].",
    dtypes=(F32, F16, BF16, I8),
    limits=(
        "expert ids in [0, expert_num); those outside active_expert_range are left out (row index -1)",
        "give active_expert_range: torch_npu 2.13 keeps the default of the first call, whatever expert_num comes later",
        "expert_tokens_num_type: 0 row ends, 1 counts, 2 pairs of the experts with tokens, then zeros",
        "row_idx_type 0: the position of each pair; 1: the pair at each position",
        "quant_mode -1 (none) and 1 (int8 by row, smooth scale [1, hidden]); drop_pad_mode 0",
    ),
    tolerance={
        F32: Tolerance(0, 1e-7, "scales: the largest magnitude of a row over 127, in fp32"),
        F16: Tolerance(0, 0, "values are moved"),
        BF16: Tolerance(0, 0, "values are moved"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    undefined=(
        "rows of expanded_x and its scales behind the last pair of this rank, and row indices of type 1 there",
        "counts without expert_tokens_num_flag; scales without scale and quantisation",
    ),
    source="contracts 8.3: vendor documentation and sources",
)
