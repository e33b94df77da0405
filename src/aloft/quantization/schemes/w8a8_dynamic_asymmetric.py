"""W8A8 with an offset a token: int8 weights with a scale a row, activations quantized per token between their ends."""

from __future__ import annotations

from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int8_matrix
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import HEAD, LINEAR, register
from aloft.quantization.weight import QuantizedWeight


@register("w8a8-dynamic-asymmetric", LINEAR)
@register("w8a8-dynamic-asymmetric", HEAD)
class DynamicAsymmetricInt8(LinearScheme):
    """``y = (xq wq - offset * sum(wq)) * weight scale * token scale + bias``, ``xq = round(x / token scale + offset)``.

    The offset's share can be many times the result, so it is taken from the integer sums, in float32.
    """

    operators = ("npu::npu_dynamic_quant_asymmetric", "npu::npu_quant_matmul")

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None or weight.group:
            raise ValueError(f"{shape.name}: W8A8 with an offset a token takes symmetric weights with a scale a row.")
        return {
            "packed": int8_matrix(weight.values, self.nz),
            "row_scale": weight.scale.flatten().contiguous(),
            "row_sum": weight.values.sum(1, dtype=torch.int32).float(),
        }

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        codes, scale, offset = torch.ops.npu.npu_dynamic_quant_asymmetric(x)
        sums = torch.ops.npu.npu_quant_matmul(codes, layer.packed, layer.row_scale, output_dtype=torch.int32)
        made = torch.addr(sums.float(), offset, layer.row_sum, alpha=-1)
        made = made * scale[:, None] * layer.row_scale
        return (made if bias is None else made + bias).to(x.dtype)
