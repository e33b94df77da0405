"""The product of float activations with integer weights, for the schemes of every width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from aloft.ops.projection import WEIGHT_ONLY, Projection, multiply
from aloft.quantization.description import LayerShape
from aloft.quantization.experts import ExpertsScheme
from aloft.quantization.layout import int4_matrix, int8_matrix, to_nz
from aloft.quantization.linear import LinearScheme
from aloft.quantization.weight import QuantizedWeight


class WeightOnly(LinearScheme):
    """Dequantizes inside the product. Scales are rounded to the activations' dtype, as the operator takes them."""

    bits: ClassVar[int]

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        made = _tensors(weight, shape, self.bits, self.nz)
        if weight.order is not None:
            made["order"] = weight.order
        self.group = weight.group
        return made

    def projection(self, layer: Any, bias: torch.Tensor | None) -> Projection | None:
        return None if hasattr(layer, "order") else self._product(layer, bias)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        order = getattr(layer, "order", None)
        return multiply(x if order is None else x.index_select(1, order), self._product(layer, bias))

    def _product(self, layer: Any, bias: torch.Tensor | None) -> Projection:
        return Projection(layer.packed, bias, WEIGHT_ONLY, self.group, layer.scale, getattr(layer, "offset", None))


class WeightOnlyExperts(ExpertsScheme):
    """The same, each row in its expert's weights."""

    operators: ClassVar[tuple[str, ...]] = ("npu::npu_moe_init_routing_v2", "npu::npu_grouped_matmul")
    bits: ClassVar[int]

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        return _tensors(weight, shape, self.bits, False)

    def finish(self, held: dict[str, torch.Tensor], dtype: torch.dtype, fused: bool) -> dict[str, torch.Tensor]:
        return held | {"packed": to_nz(held["packed"]) if self.nz and self.bits == 4 else held["packed"]}

    def projection(self, held: Mapping[str, torch.Tensor]) -> Projection:
        return Projection(held["packed"], None, WEIGHT_ONLY, 0, held["scale"], held.get("offset"))


def _tensors(weight: QuantizedWeight, shape: LayerShape, bits: int, nz: bool) -> dict[str, torch.Tensor]:
    """``[K, N]`` codes, int4 ones packed; scale and offset ``[N]`` or ``[G, N]``."""
    if shape.dtype == torch.float32:
        raise ValueError(f"{shape.name}: weight-only quantization needs --dtype bfloat16 or float16, not float32.")
    if weight.group and weight.group % 32:
        raise ValueError(f"{shape.name}: groups must be a multiple of 32 input features, not {weight.group}.")
    packed = int4_matrix(weight.values, nz) if bits == 4 else int8_matrix(weight.values, False)
    scale = weight.scale.t() if weight.group else weight.scale.flatten()
    made = {"packed": packed, "scale": scale.to(shape.dtype).contiguous()}
    if weight.zero is not None:
        offset = -(weight.zero.t() if weight.group else weight.zero.flatten())
        made["offset"] = offset.to(shape.dtype).contiguous()
    return made
