"""W4A8: 4-bit weights with a scale a row or group, activations quantized per token to 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aloft.ops.projection import DYNAMIC, Projection
from aloft.quantization.description import LayerShape
from aloft.quantization.experts import ExpertsScheme
from aloft.quantization.layout import int4_matrix, int64_scale, single_scale, to_nz
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import EXPERTS, HEAD, LINEAR, register
from aloft.quantization.weight import QuantizedWeight, spread

_HARDWARE_GROUP = 256


@register("w4a8", LINEAR)
@register("w4a8", HEAD)
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
        _check(weight, shape)
        self.group = weight.group
        # hardware reads FRACTAL_NZ with a scale a row, groups of 256 from plain rows
        nz = self.nz and weight.group != _HARDWARE_GROUP
        scale = int64_scale((weight.scale.t() if weight.group else weight.scale.flatten()).contiguous())
        return {"packed": int4_matrix(weight.values, nz), "scale": scale}

    def fused(self, layer: Any) -> None:
        # a seventh of what each step reads with groups of 96 would be scales in int64
        if layer.scale.dtype == torch.int64:
            layer.scale = torch.nn.Parameter(single_scale(layer.scale.data), requires_grad=False)

    def projection(self, layer: Any, bias: torch.Tensor | None) -> Projection:
        return Projection(layer.packed, bias, DYNAMIC, self.group, layer.scale)


@register("w4a8", EXPERTS)
class DynamicInt4WeightsExperts(ExpertsScheme):
    """The same, each row in its expert's weights.

    The hardware multiplies ``xq - 8`` and wants the eights' share, ``8 sum(wq * scale)``, as a bias.
    """

    operators = (
        "npu::npu_moe_init_routing_v2",
        "npu::npu_grouped_matmul_swiglu_quant_v2",
        "npu::npu_convert_weight_to_int4pack",
        "npu::npu_trans_quant_param",
        "npu::npu_dynamic_quant",
        "npu::npu_grouped_matmul",
    )
    fusable = True

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        _check(weight, shape)
        scale = int64_scale(weight.scale.t().contiguous())
        rounded = single_scale(scale).t()
        eights = 8 * (weight.values.float() * spread(rounded, weight.values)).sum(1)
        return {"packed": int4_matrix(weight.values), "scale": scale, "eights": eights}

    def finish(self, held: dict[str, torch.Tensor], dtype: torch.dtype, fused: bool) -> dict[str, torch.Tensor]:
        return held | {"packed": to_nz(held["packed"]) if self.nz else held["packed"]}

    def projection(self, held: Mapping[str, torch.Tensor]) -> Projection:
        return Projection(held["packed"], held["eights"], DYNAMIC, 0, held["scale"])


def _check(weight: QuantizedWeight, shape: LayerShape) -> None:
    if weight.zero is not None:
        raise ValueError(f"{shape.name}: W4A8 takes symmetric weights.")
    if weight.group % 32:
        raise ValueError(f"{shape.name}: groups must be a multiple of 32 input features, not {weight.group}.")
