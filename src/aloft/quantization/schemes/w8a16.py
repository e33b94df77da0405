"""W8A16: int8 weights with a scale a row, activations as they are."""

from __future__ import annotations

from aloft.quantization.registry import LINEAR, register
from aloft.quantization.weight_only import WeightOnly


@register("w8a16", LINEAR)
class WeightOnlyInt8(WeightOnly):
    """``y = x (wq - zero) * scale + bias``."""

    operators = ("npu::npu_weight_quant_batchmatmul",)
    bits = 8
