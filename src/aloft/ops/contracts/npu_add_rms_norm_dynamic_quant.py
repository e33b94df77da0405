"""Contract of npu_add_rms_norm_dynamic_quant."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.contracts.npu_add_rms_norm_quant import HALVES, OFF_BY_ONE, normed
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import near_dynamic


def _reference(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
) -> tuple[torch.Tensor | None, ...]:
    x = x1 + x2
    n = normed(x, gamma, beta, epsilon)
    wanted = output_mask or [True, smooth_scale1 is not None and smooth_scale2 is not None]
    results: list[tuple[torch.Tensor | None, torch.Tensor | None]] = []
    for want, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        results.append(near_dynamic(n if smooth is None else n * smooth) if want else (None, None))
    return results[0][0], results[1][0], x, results[0][1], results[1][1]


def _cases() -> Iterator[Case]:
    make = Maker("npu_add_rms_norm_dynamic_quant")
    for dtype in HALVES:
        returns = (torch.int8, torch.int8, dtype, torch.float32, torch.float32)
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 67)), ("wide", (2, 4099))):
            width = shape[-1:]
            args = (make.normal(shape, dtype), make.normal(shape, dtype), make.uniform(width, dtype, 0.5, 1.5))
            smooth = [make.uniform(width, dtype, 0.3, 3.0) for _ in range(2)]
            calls: dict[str, dict[str, object]] = {
                "one output": {},
                "smooth": {"smooth_scale1": smooth[0], "epsilon": 1e-3},
                "both": {"smooth_scale1": smooth[0], "smooth_scale2": smooth[1], "beta": make.normal(width, dtype)},
                "masked": {"smooth_scale2": smooth[1], "output_mask": [False, True]},
            }
            for name, call in calls.items():
                yield Case(f"{label}, {name}, {dtype}", args, call, dtype=dtype, returns=returns)
        for label, x1 in layouts(make.normal((5, 40), dtype)):
            args = (x1, make.normal((5, 40), dtype), make.uniform((40,), dtype, 0.5, 1.5))
            yield Case(f"{label}, {dtype}", args, dtype=dtype, returns=returns)
        zeros = torch.zeros(2, 32, dtype=dtype)
        args = (zeros, zeros.clone(), torch.ones(32, dtype=dtype))
        yield Case(f"zeros, {dtype}", args, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_add_rms_norm_dynamic_quant, bad")
    x, gamma = make.normal((4, 64), torch.bfloat16), make.normal((64,), torch.bfloat16)
    yield Bad("x2 of another dtype", (x, x.half(), gamma), names="x2")
    yield Bad("gamma too short", (x, x.clone(), gamma[:32].clone()), names="gamma")
    short = {"smooth_scale1": gamma[:32].clone()}
    yield Bad("smooth scale too short", (x, x.clone(), gamma), short, names="smooth_scale1")


CONTRACT = Contract(
    name="npu_add_rms_norm_dynamic_quant",
    schemas=("npu::npu_add_rms_norm_dynamic_quant",),
    formula="x = x1 + x2; n = rms_norm(x) · gamma + beta; by row v = n · smooth_scale_i, scale_i = max |v| / 127, "
    "y_i = sat(rint(v / scale_i)); returns (y1, y2, x, scale1, scale2).",
    dtypes=HALVES,
    limits=(
        "without output_mask y2 is there when both smooth scales are given; with it, as asked",
        "y_dtype torch.quint4x2: packed int4 (7 instead of 127), last dimension a multiple of 8",
        "fp32 from the sum to the quantiser; a row of zeros gives scale 0",
    ),
    tolerance={
        torch.int8: OFF_BY_ONE,
        torch.float32: Tolerance(4e-6, 1e-9, "fp32 sum of squares in any order, a few fp32 steps"),
        torch.float16: Tolerance(2**-11, 2**-24, "one rounding to fp16"),
        torch.bfloat16: Tolerance(2**-8, 1e-8, "one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("y and scale of an output that is not wanted",),
    source="contracts 2.5: schema and vendor sources",
)
