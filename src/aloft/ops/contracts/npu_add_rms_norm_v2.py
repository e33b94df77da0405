"""Contract of npu_add_rms_norm_v2."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Case, Contract
from aloft.ops.contracts.npu_add_rms_norm import TOLERANCE, bad_operands, operands, reference
from aloft.ops.rounding import FLOATS

_TOLERANCE = dict(TOLERANCE)
_TOLERANCE[(torch.float32, 0)] = _TOLERANCE.pop((torch.float32, 1))


def _reference(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, ...]:
    y, rstd, x = reference(x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(x)
    return (rstd,)


def _cases() -> Iterator[Case]:
    for label, dtype, args in operands("npu_add_rms_norm_v2"):
        yield Case(label, args, dtype=dtype, returns=(torch.float32,))


CONTRACT = Contract(
    name="npu_add_rms_norm_v2",
    schemas=("npu::npu_add_rms_norm_v2",),
    formula="x2 ← x1 + x2; x1 ← rms_norm(x1 + x2) · gamma; returns rstd.",
    dtypes=FLOATS,
    limits=("as npu_add_rms_norm", "x1 and x2 are overwritten"),
    tolerance=_TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=lambda: bad_operands("npu_add_rms_norm_v2"),
    source="contracts 2.3: schema and vendor sources",
)
