"""Tolerances of operators that compute in fp32 and round once."""

from __future__ import annotations

import torch

from aloft.ops.contract import Tolerance

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_UNIT = {torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-8, 2.0**-134)}


def rounded_once(relative: float, absolute: float, why: str) -> dict[torch.dtype | tuple[torch.dtype, int], Tolerance]:
    """Tolerances for float32, float16 and bfloat16 of an operator whose fp32 result has the errors given."""
    found: dict[torch.dtype | tuple[torch.dtype, int], Tolerance] = {torch.float32: Tolerance(relative, absolute, why)}
    for dtype, (unit, tiny) in _UNIT.items():
        name = str(dtype).removeprefix("torch.")
        found[dtype] = Tolerance(unit + relative, tiny + absolute, f"{why}; then one rounding to {name}")
    return found
