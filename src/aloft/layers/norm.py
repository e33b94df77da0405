"""RMS norms on ``npu_rms_norm``, ``npu_add_rms_norm`` and ``npu_gemma_rms_norm``."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm


class AloftRMSNorm(RMSNorm):
    """x / rms(x) * weight; with a residual, the norm of the sum together with the sum."""

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if self.variance_size_override is not None or not self.has_weight:
            return self.forward_native(x, residual)
        if residual is None:
            return torch.ops.npu.npu_rms_norm(x, self.weight, self.variance_epsilon)[0]
        if self.weight.dtype != x.dtype:  # the fused operator wants one dtype
            return self.forward_native(x, residual)
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, self.weight, self.variance_epsilon)
        return normed, total


class AloftGemmaRMSNorm(GemmaRMSNorm):
    """As RMSNorm with ``1 + weight``."""

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return torch.ops.npu.npu_gemma_rms_norm(x, self.weight, self.variance_epsilon)[0]
        total = x + residual
        return torch.ops.npu.npu_gemma_rms_norm(total, self.weight, self.variance_epsilon)[0], total


def replacements() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    return {RMSNorm: AloftRMSNorm, GemmaRMSNorm: AloftGemmaRMSNorm}
