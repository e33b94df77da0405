"""W4A8: 4-bit weights with a scale a row or group, activations quantized per token to 8 bits."""

from __future__ import annotations

from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int4_matrix, int64_scale
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import LINEAR, register
from aloft.quantization.weight import QuantizedWeight


@register("w4a8", LINEAR)
class DynamicInt4Weights(LinearScheme):
    """``y = sum over groups of (xq wq) * scale, times the token's scale, + bias``.

    The hardware takes one scale a row, or groups of 256; other groups (multiples of 32) run on the virtual NPU.
    """

    operators = (
        "npu::npu_dynamic_quant",
        "npu::npu_convert_weight_to_int4pack",
        "npu::npu_trans_quant_param",
        "npu::npu_quant_matmul",
    )

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None:
            raise ValueError(f"{shape.name}: W4A8 takes symmetric weights.")
        if weight.group % 32:
            raise ValueError(f"{shape.name}: groups must be a multiple of 32 input features, not {weight.group}.")
        self.groups = [0, 0, weight.group] if weight.group else None
        scale = weight.scale.t() if weight.group else weight.scale.flatten()
        return {"packed": int4_matrix(weight.values), "scale": int64_scale(scale.contiguous())}

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        codes, token_scale = torch.ops.npu.npu_dynamic_quant(x)
        return torch.ops.npu.npu_quant_matmul(
            codes,
            layer.packed,
            layer.scale,
            pertoken_scale=token_scale,
            bias=bias,
            output_dtype=x.dtype,
            group_sizes=self.groups,
        )
