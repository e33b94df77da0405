"""Contract of npu_dynamic_quant_asymmetric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import EXACT, Case, Contract
from aloft.ops.contracts.npu_dynamic_quant import HALVES, INT4, bad_operands, operands
from aloft.ops.quant import by_operand, dynamic_asymmetric, smoothed


def _reference(
    input: torch.Tensor,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return dynamic_asymmetric(smoothed(input, smooth_scales, group_index), dst_type is INT4)


def _cases() -> Iterator[Case]:
    for label, args, kwargs in operands("npu_dynamic_quant_asymmetric"):
        yield Case(label, args, kwargs, returns=(None, torch.float32, torch.float32))


CONTRACT = Contract(
    name="npu_dynamic_quant_asymmetric",
    schemas=("npu::npu_dynamic_quant_asymmetric",),
    formula="v = x · smooth; scale = max((max - min) / 255, 1e-12); offset = 127 - max / scale; "
    "y = sat(rint(v / scale + offset)) (15 and 7 for int4); v ≈ (y - offset) · scale.",
    dtypes=HALVES,
    limits=("as npu_dynamic_quant", "offset is float32 and not an integer in general"),
    tolerance={torch.float32: EXACT},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=lambda: bad_operands("npu_dynamic_quant_asymmetric"),
    widen=False,
    source="contracts 7.3: vendor documentation",
)
