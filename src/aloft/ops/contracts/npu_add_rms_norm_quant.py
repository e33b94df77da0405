"""Contract of npu_add_rms_norm_quant."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import saturate

HALVES = (torch.float16, torch.bfloat16)
OFF_BY_ONE = Tolerance(0.0, 1.0, "a value near the middle of two integers may round either way")


def normed(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    n = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * gamma
    return n if beta is None else n + beta


def _reference(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    div_mode: bool = True,
) -> tuple[torch.Tensor | None, ...]:
    x = x1 + x2
    n = normed(x, gamma, beta, epsilon)

    def quantised(scale: torch.Tensor | None, zero: torch.Tensor | None) -> torch.Tensor | None:
        if scale is None:
            return None
        v = n / scale if div_mode else n * scale
        return saturate(v if zero is None else v + zero, -128, 127, torch.int8)

    return quantised(scales1, zero_points1), quantised(scales2, zero_points2), x


def _cases() -> Iterator[Case]:
    make = Maker("npu_add_rms_norm_quant")
    for dtype in HALVES:
        kind, zeros = (dtype, dtype) if dtype == torch.bfloat16 else (torch.float32, torch.int32)
        returns = (torch.int8, torch.int8, dtype)
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 67)), ("wide", (2, 4099))):
            width = shape[-1:]
            args = (make.normal(shape, dtype), make.normal(shape, dtype), make.uniform(width, dtype, 0.5, 1.5))
            divisors = make.uniform(width, kind, 0.03, 0.1)
            zero = make.integers(width, -9, 10).to(zeros)
            yield Case(f"{label}, {dtype}", (*args, divisors, zero), dtype=dtype, returns=returns)
            second = (make.normal(width, dtype), make.uniform(width, kind, 0.03, 0.1), zero.clone())
            yield Case(f"{label}, both, beta, {dtype}", (*args, divisors, zero, *second), dtype=dtype, returns=returns)
            factors = {"div_mode": False, "epsilon": 1e-3}
            call = (*args, make.uniform(width, kind, 10.0, 30.0), None)
            yield Case(f"{label}, multiplied, {dtype}", call, factors, dtype=dtype, returns=returns)
        for label, x1 in layouts(make.normal((5, 40), dtype)):
            args = (x1, make.normal((5, 40), dtype), make.uniform((40,), dtype, 0.5, 1.5))
            call = (*args, make.uniform((1,), kind, 0.03, 0.1), None)
            yield Case(f"{label}, one scale, {dtype}", call, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_add_rms_norm_quant, bad")
    x, gamma = make.normal((4, 64), torch.bfloat16), make.normal((64,), torch.bfloat16)
    yield Bad("x2 of another shape", (x, x[:, :32].clone(), gamma, gamma, None), names="x2")
    yield Bad("scales too short", (x, x.clone(), gamma, gamma[:32].clone(), None), names="scales1")
    yield Bad("axis 0", (x, x.clone(), gamma, gamma.clone(), None), {"axis": 0}, names="axis")


CONTRACT = Contract(
    name="npu_add_rms_norm_quant",
    schemas=("npu::npu_add_rms_norm_quant",),
    formula="x = x1 + x2; n = rms_norm(x) · gamma + beta; y_i = sat(rint(n / scales_i + zero_points_i)) "
    "(n · scales_i without div_mode); returns (y1, y2, x).",
    dtypes=HALVES,
    limits=(
        "scales and zero points: one or one a column; fp16: float32 and int32, bf16: both bf16",
        "y2 is allocated always and defined only with scales2",
        "bf16 is fp32 inside; fp16 rounds the sum, the normalised value and its product with gamma",
    ),
    tolerance={
        torch.int8: OFF_BY_ONE,
        torch.float16: Tolerance(2**-11, 2**-24, "one rounding to fp16"),
        torch.bfloat16: Tolerance(2**-8, 1e-8, "one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 2.4: vendor documentation and published kernels",
)
