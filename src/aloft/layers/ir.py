"""Our implementations of vLLM's IR operators, for layers that call them without a class of ours between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.config.kernel import IrOpPriorityConfig

PROVIDER = "aloft"


def _plain(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return weight is not None and variance_size is None and weight.dtype in (x.dtype, torch.float32)


def _same_dtype(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return weight is not None and variance_size is None and weight.dtype == x.dtype == x_residual.dtype


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    return torch.ops.npu.npu_rms_norm(x, weight, epsilon)[0]


def fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, _, total = torch.ops.npu.npu_add_rms_norm(x, x_residual, weight, epsilon)
    return normed, total


def register() -> None:
    """Registers the implementations once per process."""
    from vllm import ir

    for op, function, supports in (
        (ir.ops.rms_norm, rms_norm, _plain),
        (ir.ops.fused_add_rms_norm, fused_add_rms_norm, _same_dtype),
    ):
        if PROVIDER not in op.impls:
            op.register_impl(PROVIDER, supported=True, supports_args=supports)(function)


def priority() -> IrOpPriorityConfig:
    """Ours first where the arguments allow it, vLLM's composition otherwise."""
    from vllm.config.kernel import IrOpPriorityConfig

    return IrOpPriorityConfig.with_default(
        ["native"], rms_norm=[PROVIDER, "native"], fused_add_rms_norm=[PROVIDER, "native"]
    )
