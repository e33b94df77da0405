"""W8A8 dynamic: int8 weights with a scale a row or group, activations quantized per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aloft.ops.projection import DYNAMIC, Projection
from aloft.quantization.description import LayerShape
from aloft.quantization.experts import ExpertsScheme
from aloft.quantization.layout import int8_matrix, to_nz
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import EMBEDDING, EXPERTS, HEAD, LINEAR, register
from aloft.quantization.table import Table
from aloft.quantization.weight import QuantizedWeight


@register("w8a8-dynamic", LINEAR)
@register("w8a8-dynamic", HEAD)
class DynamicInt8(LinearScheme):
    """``y = sum over groups of (xq wq) * weight scale, times the token's scale, + bias``.

    The hardware takes one scale a row; groups (multiples of 32) run on the virtual NPU.
    """

    operators = ("npu::npu_dynamic_quant", "npu::npu_quant_matmul")

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None:
            raise ValueError(f"{shape.name}: W8A8 takes symmetric weights.")
        if weight.group % 32:
            raise ValueError(f"{shape.name}: groups must be a multiple of 32 input features, not {weight.group}.")
        self.group = weight.group
        scale = weight.scale.t() if weight.group else weight.scale.flatten()
        return {"packed": int8_matrix(weight.values, self.nz), "row_scale": scale.contiguous()}

    def projection(self, layer: Any, bias: torch.Tensor | None) -> Projection:
        return Projection(layer.packed, bias, DYNAMIC, self.group, layer.row_scale)


@register("w8a8-dynamic", EXPERTS)
class DynamicInt8Experts(ExpertsScheme):
    """The same, each row in its expert's weights.

    The grouped product takes bfloat16 scales for bfloat16 results, the one with SwiGLU float32 ones.
    """

    operators = (
        "npu::npu_moe_init_routing_v2",
        "npu::npu_grouped_matmul_swiglu_quant",
        "npu::npu_dynamic_quant",
        "npu::npu_grouped_matmul",
    )
    fusable = True

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None or weight.group:
            raise ValueError(f"{shape.name}: W8A8 takes symmetric weights with one scale a row in experts.")
        return {"packed": int8_matrix(weight.values, False), "row_scale": weight.scale.flatten()}

    def finish(self, held: dict[str, torch.Tensor], dtype: torch.dtype, fused: bool) -> dict[str, torch.Tensor]:
        narrow = dtype == torch.bfloat16 and not fused
        scale = held["row_scale"].to(torch.bfloat16) if narrow else held["row_scale"]
        return {"packed": to_nz(held["packed"]) if self.nz else held["packed"], "row_scale": scale}

    def projection(self, held: Mapping[str, torch.Tensor]) -> Projection:
        return Projection(held["packed"], None, DYNAMIC, 0, held["row_scale"])


@register("w8a8-dynamic", EMBEDDING)
class DynamicInt8Table(Table):
    """int8 with a scale a row; of a tied head's product activations are quantized per token."""

    operators = ("aten::index_select", "npu::npu_dynamic_quant", "npu::npu_quant_matmul")
    bits = 8
    kind = DYNAMIC
