"""The product of float activations with integer weights, for the schemes of every width."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int4_matrix, int8_matrix
from aloft.quantization.linear import LinearScheme
from aloft.quantization.weight import QuantizedWeight


class WeightOnly(LinearScheme):
    """Dequantizes inside the product. Scales are rounded to the activations' dtype, as the operator takes them."""

    bits: ClassVar[int]

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if shape.dtype == torch.float32:
            raise ValueError(f"{shape.name}: weight-only quantization needs --dtype bfloat16 or float16, not float32.")
        if weight.group and weight.group % 32:
            raise ValueError(f"{shape.name}: groups must be a multiple of 32 input features, not {weight.group}.")
        packed = int4_matrix(weight.values) if self.bits == 4 else int8_matrix(weight.values, False)
        scale = weight.scale.t() if weight.group else weight.scale.flatten()
        made = {"packed": packed, "scale": scale.to(shape.dtype).contiguous()}
        if weight.zero is not None:
            offset = -(weight.zero.t() if weight.group else weight.zero.flatten())
            made["offset"] = offset.to(shape.dtype).contiguous()
        if weight.order is not None:
            made["order"] = weight.order
        self.group = weight.group
        return made

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        order = getattr(layer, "order", None)
        if order is not None:
            x = x.index_select(1, order)
        if bias is not None and x.dtype == torch.bfloat16:
            bias = bias.float()
        return torch.ops.npu.npu_weight_quant_batchmatmul(
            x,
            layer.packed,
            layer.scale,
            antiquant_offset=getattr(layer, "offset", None),
            bias=bias,
            antiquant_group_size=self.group,
        )
