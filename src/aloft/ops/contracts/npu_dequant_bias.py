"""Contract of npu_dequant_bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker
from aloft.ops.quant import by_operand


def _reference(
    x: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_dtype: Any = None,
) -> torch.Tensor:
    integer = bias is not None and not bias.dtype.is_floating_point
    value = (x + bias if integer and bias is not None else x).double() * weight_scale
    if activation_scale is not None:
        value = value * activation_scale[:, None]
    return value if bias is None or integer else value + bias


def _cases() -> Iterator[Case]:
    make = Maker("npu_dequant_bias")
    for m, n in ((1, 16), (5, 67), (40, 256)):
        x = make.integers((m, n), -9000, 9000, torch.int32)
        scale, rows = make.uniform((n,), low=1e-4, high=1e-3), make.uniform((m,), low=0.1, high=1.0)
        for dtype in (torch.float16, torch.bfloat16):
            call = {"output_dtype": dtype}
            integers = make.integers((n,), -900, 900, torch.int32)
            yield Case(f"{m}x{n}, {dtype}", (x, scale, None, None), call, dtype=dtype)
            yield Case(f"{m}x{n}, int32 bias, {dtype}", (x, scale, rows, integers), call, dtype=dtype)
            yield Case(f"{m}x{n}, float bias, {dtype}", (x, scale, rows, make.normal((n,))), call, dtype=dtype)


def _bad() -> Iterator[Bad]:
    x = Maker("npu_dequant_bias, bad").integers((4, 16), -9, 9, torch.int32)
    yield Bad("scale too short", (x, torch.ones(8), None, None), names="weight_scale")
    yield Bad("activation scales too many", (x, torch.ones(16), torch.ones(5), None), names="activation_scale")


CONTRACT = Contract(
    name="npu_dequant_bias",
    schemas=("npu::npu_dequant_bias",),
    formula="int32 bias: y = (x + bias) · weight_scale · activation_scale; float bias: added last.",
    dtypes=(torch.int32,),
    limits=("x int32 [m, n]; float16 (default) or bfloat16 output",),
    tolerance={
        torch.float16: Tolerance(2**-11 + 1e-6, 1e-6, "a few fp32 steps, one rounding to fp16"),
        torch.bfloat16: Tolerance(2**-8 + 1e-6, 1e-6, "a few fp32 steps, one rounding to bf16"),
    },
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    source="contracts 7.4: vendor documentation",
)
