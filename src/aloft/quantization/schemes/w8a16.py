"""W8A16: int8 weights with a scale a row, activations as they are."""

from __future__ import annotations

from aloft.quantization.registry import EMBEDDING, EXPERTS, HEAD, LINEAR, register
from aloft.quantization.table import Table
from aloft.quantization.weight_only import WeightOnly, WeightOnlyExperts


@register("w8a16", LINEAR)
@register("w8a16", HEAD)
class WeightOnlyInt8(WeightOnly):
    """``y = x (wq - zero) * scale + bias``."""

    operators = ("npu::npu_weight_quant_batchmatmul",)
    bits = 8


@register("w8a16", EXPERTS)
class WeightOnlyInt8Experts(WeightOnlyExperts):
    """The same, each row in its expert's weights."""

    bits = 8


@register("w8a16", EMBEDDING)
class Int8Table(Table):
    """int8 with a scale a row or group."""

    bits = 8
