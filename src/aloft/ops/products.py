"""What the contracts of the matrix products share: dtypes, tolerances, limits, FRACTAL_NZ weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aloft.ops.contract import Tolerance

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ND, NZ = 2, 29
SHAPES = ((1, 1, 1), (1, 48, 64), (3, 17, 31), (5, 16, 100), (33, 130, 257), (2, 1, 40))  # m, n, k

# Sums of at most 300 products of standard normal values in fp32: each of k roundings is near 2^-25 sqrt(k), their
# sum near k 2^-25; a little more than six times that is allowed.
_SUM = 300 * 2.0**-25 * 7
TOLERANCE: dict[torch.dtype | tuple[torch.dtype, int], Tolerance] = {
    torch.float32: Tolerance(2**-23, _SUM, "fp32 sums in any order"),
    torch.float16: Tolerance(2**-11, _SUM, "fp32 sums, one rounding to fp16"),
    torch.bfloat16: Tolerance(2**-8, _SUM, "fp32 sums, one rounding to bf16"),
}
LIMITS = (
    "operands are float32, float16 or bfloat16, all alike; sums are fp32, rounded once; cube_math_type and allow_hf32 "
    "change nothing",
    "other dtypes take the generic route to the CPU operator",
    "the result of a row does not depend on the other rows, the layout of the operands or the number of threads",
)


def with_weight_format(product: Callable[..., Any], place: int) -> Callable[..., Any]:
    """`product` with one more argument, a format (ND or NZ) into which its argument `place` is cast first."""

    def call(*args: Any, weight_format: int = ND, **kwargs: Any) -> Any:
        if weight_format == ND:
            return product(*args, **kwargs)
        config = torch.npu.config  # type: ignore[attr-defined]
        config.allow_internal_format = True
        try:
            weight = args[place]
            transposed = weight.stride(-2) == 1 and weight.stride(-1) != 1
            stored = weight.mT.clone() if transposed else weight.clone()
            packed = torch.ops.npu.npu_format_cast(stored, weight_format)
            operands = [*args[:place], packed.mT if transposed else packed, *args[place + 1 :]]
            return product(*operands, **kwargs)
        finally:
            config.allow_internal_format = False  # torch_npu's default; it offers no way to read it

    return call


def without_format(reference: Callable[..., Any]) -> Callable[..., Any]:
    """`reference`, ignoring the argument `weight_format`."""

    def call(*args: Any, weight_format: int = ND, **kwargs: Any) -> Any:
        return reference(*args, **kwargs)

    return call
