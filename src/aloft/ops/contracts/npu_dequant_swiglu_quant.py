"""Contract of npu_dequant_swiglu_quant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Masked, Tolerance
from aloft.ops.contracts.npu_add_rms_norm_quant import OFF_BY_ONE
from aloft.ops.contracts.npu_swiglu_quant import by_row
from aloft.ops.generate import Maker
from aloft.ops.quant import by_operand, near_dynamic, saturate


def _reference(
    x: torch.Tensor,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[torch.Tensor | Masked, torch.Tensor | Masked | None]:
    rows = x.shape[0]
    group, used = torch.zeros(rows, dtype=torch.int64), rows
    if group_index is not None:
        group = torch.searchsorted(group_index.cumsum(0), torch.arange(rows), right=True)
        used = int(group_index.sum())
    f = x.double() if bias is None else (x + bias).double()
    if weight_scale is not None:
        f = f * by_row(weight_scale, group, rows)
    if activation_scale is not None:
        f = f * activation_scale.reshape(rows, 1)
    left, right = (f[:, ::2], f[:, 1::2]) if swiglu_mode == 1 else f.chunk(2, -1)
    act, gate = (left, right) if activate_left else (right, left)
    if swiglu_mode:
        act = act.clamp_max(clamp_limit)
        v = act * (act * glu_alpha).sigmoid() * (gate.clamp(-clamp_limit, clamp_limit) + glu_bias)
    else:
        v = act * act.sigmoid() * gate
    if quant_scale is not None:
        v = v * by_row(quant_scale, group, rows)
    defined = torch.arange(rows) < used
    if quant_mode == 0:
        value = v if quant_offset is None else v + by_row(quant_offset, group, rows)
        return Masked(saturate(value, -128, 127, torch.int8), defined[:, None]), None
    y, scale = near_dynamic(v)
    return Masked(y, defined[:, None]), Masked(scale, defined)


def _cases() -> Iterator[Case]:
    make = Maker("npu_dequant_swiglu_quant")
    returns = (torch.int8, torch.float32)
    for rows, h in ((4, 64), (3, 40), (17, 192)):
        x = make.integers((rows, 2 * h), -20000, 20000, torch.int32)
        base: dict[str, Any] = {
            "weight_scale": make.uniform((1, 2 * h), low=1e-4, high=1e-3),
            "activation_scale": make.uniform((rows,), low=0.1, high=1.0),
        }
        bias = make.integers((2 * h,), -500, 500, torch.int32)
        for left in (False, True):
            name = f"{rows}x{h}, left {left}"
            yield Case(name, (x,), base | {"activate_left": left, "quant_mode": 1}, returns=returns)
            yield Case(
                f"{name}, bias", (x,), base | {"activate_left": left, "quant_mode": 1, "bias": bias}, returns=returns
            )
            for mode in (1, 2):
                call = base | {"activate_left": left, "quant_mode": 1, "swiglu_mode": mode}
                yield Case(f"{name}, swiglu_mode {mode}", (x,), call, returns=returns)
        static = {"quant_scale": make.uniform((1, h), low=1.0, high=9.0), "quant_offset": make.normal((1, h))}
        yield Case(f"{rows}x{h}, static", (x,), base | static, returns=returns)
        smooth = {"quant_scale": make.uniform((1, h), low=0.5, high=2.0), "quant_mode": 1}
        yield Case(f"{rows}x{h}, smooth", (x,), base | smooth, returns=returns)
        for dtype in (torch.float16, torch.bfloat16):
            args = (make.normal((rows, 2 * h), dtype, scale=2.0),)
            yield Case(f"{rows}x{h}, {dtype}", args, {"quant_mode": 1}, dtype=dtype, returns=returns)
    counts = torch.tensor([3, 0, 6])
    call = {
        "weight_scale": make.uniform((3, 128), low=1e-4, high=1e-3),
        "activation_scale": make.uniform((11,), low=0.1, high=1.0),
        "quant_scale": make.uniform((3, 64), low=0.5, high=2.0),
        "group_index": counts,
        "quant_mode": 1,
        "activate_left": True,
    }
    yield Case("groups", (make.integers((11, 128), -20000, 20000, torch.int32),), call, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_dequant_swiglu_quant, bad")
    x = make.integers((4, 64), -99, 99, torch.int32)
    yield Bad("no weight scale", (x,), {"quant_mode": 1}, names="weight_scale")
    scales = {"weight_scale": torch.ones(1, 64), "quant_mode": 1}
    yield Bad("activation scales too many", (x,), scales | {"activation_scale": torch.ones(5)}, names="activation")
    yield Bad("float32", (x.float(),), {"quant_mode": 1}, names="x")


CONTRACT = Contract(
    name="npu_dequant_swiglu_quant",
    schemas=("npu::npu_dequant_swiglu_quant",),
    formula="f = (x + bias) · weight_scale · activation_scale (int32 x); v = silu(right) · left; quant_mode 1: by row "
    "v · quant_scale, scale = max / 127; 0: v · quant_scale + quant_offset.",
    dtypes=(torch.int32, torch.float16, torch.bfloat16),
    limits=(
        "activate_left: silu(left) · right, what gate ‖ up weights need",
        "swiglu_mode 1 (even and odd elements) and 2 (halves) clamp and shift as npu_clipped_swiglu",
        "group_index int64: counts; then neither bias nor quant_offset, and H a multiple of 64",
    ),
    tolerance={torch.int8: OFF_BY_ONE, torch.float32: Tolerance(4e-6, 1e-9, "the exponential, a few fp32 steps")},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    undefined=("rows behind the last group", "scale with quant_mode 0"),
    source="contracts 3.4: schema and vendor documentation",
)
