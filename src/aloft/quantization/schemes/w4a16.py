"""W4A16: 4-bit weights with a scale a row or group, with or without zero point, activations as they are."""

from __future__ import annotations

from aloft.quantization.registry import EMBEDDING, EXPERTS, HEAD, LINEAR, register
from aloft.quantization.table import Table
from aloft.quantization.weight_only import WeightOnly, WeightOnlyExperts


@register("w4a16", LINEAR)
@register("w4a16", HEAD)
class WeightOnlyInt4(WeightOnly):
    """``y = x (wq - zero) * scale + bias``, weights packed along the outputs."""

    operators = ("npu::npu_convert_weight_to_int4pack", "npu::npu_weight_quant_batchmatmul")
    bits = 4


@register("w4a16", EXPERTS)
class WeightOnlyInt4Experts(WeightOnlyExperts):
    """The same, each row in its expert's weights."""

    operators = ("npu::npu_convert_weight_to_int4pack", *WeightOnlyExperts.operators)
    bits = 4


@register("w4a16", EMBEDDING)
@register("w4a8", EMBEDDING)
class Int4Table(Table):
    """4 bits with a scale a row or group. Of W4A8 tables a tied head's activations stay as they are."""

    operators = (*Table.operators, "npu::npu_convert_weight_to_int4pack", "npu::npu_anti_quant")
    bits = 4
