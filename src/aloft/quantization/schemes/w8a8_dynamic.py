"""W8A8 dynamic: int8 weights with a scale a row, activations quantized per token."""

from __future__ import annotations

from typing import Any

import torch

from aloft.ops.projection import DYNAMIC, Projection
from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int8_matrix
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import LINEAR, register
from aloft.quantization.weight import QuantizedWeight


@register("w8a8-dynamic", LINEAR)
class DynamicInt8(LinearScheme):
    """``y = (xq wq) * weight scale * token scale + bias``."""

    operators = ("npu::npu_dynamic_quant", "npu::npu_quant_matmul")

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None or weight.group:
            raise ValueError(f"{shape.name}: W8A8 takes symmetric weights with one scale a row.")
        return {"packed": int8_matrix(weight.values, self.nz), "row_scale": weight.scale.flatten().contiguous()}

    def projection(self, layer: Any, bias: torch.Tensor | None) -> Projection:
        return Projection(layer.packed, bias, DYNAMIC, 0, layer.row_scale)
