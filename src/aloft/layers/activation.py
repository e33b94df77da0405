"""Gated activations on ``npu_swiglu``. The GELU variants run vLLM's own aten composition."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.activation import SiluAndMul


class AloftSiluAndMul(SiluAndMul):
    """silu(first half) * second half of the last dimension."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu.npu_swiglu(x, -1)


def replacements() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    return {SiluAndMul: AloftSiluAndMul}
