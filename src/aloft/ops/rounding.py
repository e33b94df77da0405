"""Tolerances of operators that compute in fp32 and round to the output dtype once or a few times."""

from __future__ import annotations

import torch

from aloft.ops.contract import Tolerance

#: Largest relative error of one rounding to the dtype.
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def rounded(
    times: int = 1, fp32: float = 2e-6, atol: float = 1e-6, why: str = ""
) -> dict[torch.dtype | tuple[torch.dtype, int], Tolerance]:
    """Tolerances for outputs rounded `times` times, after fp32 arithmetic with relative error `fp32`.

    `atol` is the absolute part of that arithmetic (cancellation), in units of the output; `why` is added to the text.
    """
    steps = "one rounding" if times == 1 else f"{times} roundings"
    smallest = {torch.float32: 0.0, torch.float16: 2.0**-24, torch.bfloat16: 0.0}
    return {
        dtype: Tolerance(
            (times * UNIT[dtype] if dtype != torch.float32 else 0.0) + fp32,
            atol + smallest[dtype],
            f"fp32 inside{', ' + why if why else ''}"
            + ("" if dtype == torch.float32 else f"; {steps} to {str(dtype).removeprefix('torch.')}"),
        )
        for dtype in FLOATS
    }
