"""Contract of npu_moe_gating_top_k: experts by sigmoid or softmax scores, with a bias for the choice, in groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.contracts.npu_moe_gating_top_k_softmax import best
from aloft.ops.generate import Maker

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def _reference(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    scores = x.sigmoid() if norm_type else x.softmax(-1)
    choice = scores if bias is None else scores + bias
    if group_count > 1:
        groups = choice.unflatten(-1, (group_count, -1))
        value = groups.topk(2, -1).values.sum(-1) if group_select_mode else groups.amax(-1)
        kept = torch.zeros_like(value, dtype=torch.bool).scatter(-1, best(value, k_group), True)
        choice = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    ids = best(choice, k)
    weights = scores.gather(-1, ids)
    if norm_type:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return weights * routed_scaling_factor, ids.to(torch.int32), scores if out_flag else None


def _cases() -> Iterator[Case]:
    make = Maker("npu_moe_gating_top_k")
    for dtype in (F32, F16, BF16):
        returns = (dtype, torch.int32, F32)
        for rows, experts, k in ((1, 8, 2), (7, 60, 4), (37, 128, 8)):
            x, bias = make.normal((rows, experts), dtype), make.normal((experts,), dtype, 0.3)
            for norm in (0, 1):
                label = f"{rows} x {experts}, norm {norm}, {dtype}"
                call: dict[str, Any] = {"norm_type": norm, "out_flag": True, "routed_scaling_factor": 2.5}
                yield Case(label, (x, k), call, dtype, returns)
                yield Case(f"{label}, bias", (x, k), call | {"bias": bias}, dtype, returns)
                for mode in (0, 1):
                    call |= {"group_count": 4, "k_group": 2, "group_select_mode": mode}
                    if experts > 8:
                        yield Case(f"{label}, groups by {mode}", (x, k), call | {"bias": bias}, dtype, returns)


def _bad() -> Iterator[Bad]:
    x = Maker("npu_moe_gating_top_k, bad").normal((4, 16))
    yield Bad("k beyond the kept groups", (x, 5), {"group_count": 4, "k_group": 1}, names="k")
    yield Bad("groups that do not divide", (x, 2), {"group_count": 3}, names="group_count")
    yield Bad("bias too short", (x, 2), {"bias": torch.zeros(8)}, names="bias")
    yield Bad("norm_type", (x, 2), {"norm_type": 7}, names="norm_type")


CONTRACT = Contract(
    name="npu_moe_gating_top_k",
    schemas=("npu::npu_moe_gating_top_k",),
    formula="s = softmax(x) or sigmoid(x); ids: the k largest s + bias of the kept groups; weights: s there, over "
    "their sum + eps for sigmoid, times routed_scaling_factor.",
    dtypes=(F32, F16, BF16),
    limits=(
        "x [rows, experts]; bias [experts] of its dtype; at most 2048 experts",
        "group_select_mode 0: a group counts as its largest s + bias, 1: as the sum of its two largest",
        "renorm 0 only; softmax weights are not divided; no input_ids and tid2eid",
        "equal values: the lower index; NaN is below every number",
    ),
    tolerance={
        F32: Tolerance(2**-19, 1e-7, "fp32 exponentials and sums of at most 128"),
        F16: Tolerance(2**-10, 1e-7, "fp32 inside, one rounding to fp16"),
        BF16: Tolerance(2**-7.9, 1e-7, "fp32 inside, one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("the scores unless out_flag=True",),
    source="contracts 8.1: vendor documentation and sources",
)
