"""aloft::compact_weight: bfloat16 weights without loss in three quarters of their bytes, where the runtime can."""

from __future__ import annotations

import torch


def compact(weight: torch.Tensor) -> int:
    """Rewrites a weight in its own memory; every operator reads the same values from it as before.

    Args:
        weight: ``[in, out]`` of any format and dtype. Rewritten: bfloat16 in FRACTAL_NZ, owning its storage, multiples
            of 32 and 16 in size, on the virtual NPU of a processor with AVX-512, whose exponents are few (16 but for
            one value in 512): the weights of trained models.

    Returns:
        Bytes that a product reads from now on; 0: the weight stays as it is.
    """
    operator = getattr(torch.ops.aloft, "compact_weight", None)
    if operator is None or weight.device.type != "npu":
        return 0
    return int(operator.default(weight))
