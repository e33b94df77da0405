"""W8A8 static: int8 weights with a scale a row, activations quantized with one calibrated scale and offset."""

from __future__ import annotations

from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int8_matrix, output_scale
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import HEAD, LINEAR, register
from aloft.quantization.weight import QuantizedWeight

_QINT8 = torch.qint8


@register("w8a8-static", LINEAR)
@register("w8a8-static", HEAD)
class StaticInt8(LinearScheme):
    """``y = (xq wq + integer bias) * dequantization scale``, ``xq = round(x / input scale + offset)``.

    The integer bias takes back the offset's share, ``-offset * sum(wq)``. Shards of a fused layer that were calibrated
    apart get the range that covers them all.
    """

    operators = ("npu::npu_quantize", "npu::npu_quant_matmul", "npu::npu_trans_quant_param")

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None or weight.group:
            raise ValueError(f"{shape.name}: W8A8 takes symmetric weights with one scale a row.")
        assert weight.input_scale is not None and weight.input_offset is not None
        scale, offset, same = _common(weight.input_scale, weight.input_offset)
        if not float(scale) > 0:
            raise ValueError(f"{shape.name}: input_scale must be positive, not {float(scale)}.")
        integer_bias = weight.integer_bias
        if integer_bias is None or not same:
            integer_bias = -(weight.values.sum(1, dtype=torch.int64) * offset.long()).to(torch.int32)
        if not shape.is_first_rank and shape.split_inputs:
            integer_bias = torch.zeros_like(integer_bias)  # the sum over the ranks counts it once
        dtype = shape.dtype
        return {
            "packed": int8_matrix(weight.values, self.nz),
            "dequantization": output_scale((weight.scale.flatten() * scale).contiguous(), dtype),
            "integer_bias": integer_bias.contiguous(),
            "input_reciprocal": (1.0 / scale).to(dtype).reshape(1),
            "input_offset": offset.to(dtype).reshape(1),
        }

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        codes = torch.ops.npu.npu_quantize(x, layer.input_reciprocal, layer.input_offset, _QINT8, -1, False)
        y = torch.ops.npu.npu_quant_matmul(
            codes, layer.packed, layer.dequantization, bias=layer.integer_bias, output_dtype=x.dtype
        )
        return y if bias is None else y + bias


def _common(scale: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """One scale and offset for all shards, and whether they agreed from the start."""
    if bool((scale == scale[0]).all()) and bool((offset == offset[0]).all()):
        return scale[0], offset[0], True
    low, high = ((-128 - offset) * scale).min(), ((127 - offset) * scale).max()
    if bool((offset == 0).all()):
        return scale.max(), offset[0], False
    made = (high - low) / 255
    return made, torch.round(-128 - low / made), False
