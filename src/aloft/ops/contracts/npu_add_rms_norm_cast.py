"""Contract of npu_add_rms_norm_cast."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Case, Contract, Tolerance
from aloft.ops.contracts.npu_add_rms_norm import TOLERANCE, bad_operands, operands, reference
from aloft.ops.rounding import FLOATS

_TOLERANCE = {key: value for key, value in TOLERANCE.items() if isinstance(key, torch.dtype)} | {
    (torch.float32, 0): Tolerance(2 * 2.0**-8 + 2e-6, 1e-6, "x · rstd was rounded to the input dtype"),
    (torch.float32, 2): Tolerance(2.0**-11 + 2e-6, 1e-7, "rstd of the sum, which fp16 rounds first"),
}


def _reference(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, ...]:
    y, rstd, x = reference(x1, x2, gamma, epsilon)
    return y, y, rstd, x


def _cases() -> Iterator[Case]:
    for label, dtype, args in operands("npu_add_rms_norm_cast"):
        yield Case(label, args, dtype=dtype, returns=(torch.float32, dtype, torch.float32, dtype))


CONTRACT = Contract(
    name="npu_add_rms_norm_cast",
    schemas=("npu::npu_add_rms_norm_cast",),
    formula="As npu_add_rms_norm; returns (y in float32, y in the input dtype, rstd, x).",
    dtypes=FLOATS,
    limits=("as npu_add_rms_norm",),
    tolerance=_TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=lambda: bad_operands("npu_add_rms_norm_cast"),
    source="contracts 2.3: schema",
)
