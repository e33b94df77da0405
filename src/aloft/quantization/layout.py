"""Tensors as the device's operators take them."""

from __future__ import annotations

import torch

ACL_FORMAT_FRACTAL_NZ = 29


def int8_matrix(values: torch.Tensor, nz: bool) -> torch.Tensor:
    """int8 ``[N, K]`` to ``[K, N]``, packed into FRACTAL_NZ where asked."""
    matrix = values.t().contiguous()
    return to_nz(matrix) if nz else matrix


def to_nz(matrix: torch.Tensor) -> torch.Tensor:
    """``[..., K, N]`` in FRACTAL_NZ."""
    # torch_npu makes an ND tensor, with no more than a warning, unless internal formats are allowed
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    return torch.ops.npu.npu_format_cast(matrix, ACL_FORMAT_FRACTAL_NZ)


def int4_matrix(values: torch.Tensor, nz: bool = False) -> torch.Tensor:
    """Signed 4-bit codes int8 ``[N, K]`` to packed int32 ``[K, N / 8]``, in FRACTAL_NZ where asked.

    Raises:
        ValueError: N is no multiple of 8.
    """
    if values.shape[0] % 8:
        raise ValueError(f"4-bit weights need a multiple of 8 output features, not {values.shape[0]}")
    matrix = values.t().to(torch.int32).contiguous()
    if nz:
        matrix = to_nz(matrix)
    return torch.ops.npu.npu_convert_weight_to_int4pack(matrix)


def output_scale(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A float32 dequantization scale ``[N]`` as static W8A8 products take it: packed int64 for float16 outputs."""
    return torch.ops.npu.npu_trans_quant_param(scale) if dtype == torch.float16 else scale


def int64_scale(scale: torch.Tensor) -> torch.Tensor:
    """A float32 scale of any shape as the operators with 4-bit weights take it: rounded to 19 bits, in int64."""
    return torch.ops.npu.npu_trans_quant_param(scale.flatten(), round_mode=1).view(scale.shape)


def single_scale(packed: torch.Tensor) -> torch.Tensor:
    """The numbers in an ``int64_scale``, float32."""
    return packed.to(torch.int32).view(torch.float32)
