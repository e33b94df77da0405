"""The tensors of AWQ's and GPTQ's linear layers: ``qweight``, ``qzeros``, ``scales``, ``g_idx``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.formats import parameters as make
from aloft.quantization.weight import QuantizedWeight, unpack_int32

#: AWQ's GEMM kernels keep output feature 8i + j in the nibble _AWQ_ORDER[j] of a word
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def _whole_words(shape: LayerShape, count: int) -> None:
    if shape.inputs % count or any(part % count for part in shape.outputs):
        raise ValueError(f"{shape.name}: {shape.inputs} x {shape.outputs} codes do not fill whole int32 words.")


@dataclass(frozen=True)
class AwqStorage(make.Unsigned):
    """``qweight`` int32 ``[K, N / 8]``, ``qzeros`` ``[G, N / 8]``, ``scales`` ``[G, N]``: unsigned codes."""

    group: int
    zero_point: bool

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        _whole_words(shape, 8)
        rows = sum(shape.outputs)
        make.add(layer, "qweight", make.packed_weight(shape, (shape.inputs, rows // 8), torch.int32, 1, 1, 8))
        if self.zero_point:
            make.add(layer, "qzeros", make.packed_zeros(shape, self.group, torch.int32, 1, 8))
        make.add(layer, "scales", make.per_group(shape, self.group, torch.float32, output_dim=1))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        values = unpack_int32(layer.qweight.data, 4, 1, _AWQ_ORDER).t() - 8
        zero = None
        if self.zero_point:
            zero = unpack_int32(layer.qzeros.data, 4, 1, _AWQ_ORDER).t().float() - 8
        scale = layer.scales.data.t().float()
        return QuantizedWeight(values.to(torch.int8).contiguous(), scale.contiguous(), zero, shape.outputs)


@dataclass(frozen=True)
class GptqStorage(make.Unsigned):
    """``qweight`` int32 ``[K / n, N]``, ``qzeros`` ``[G, N / n]``, ``scales`` ``[G, N]``, ``g_idx`` ``[K]``."""

    bits: int
    group: int
    symmetric: bool
    ordered: bool
    shift: int

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        count = 32 // self.bits
        _whole_words(shape, count)
        size = (shape.inputs // count, sum(shape.outputs))
        make.add(layer, "qweight", make.packed_weight(shape, size, torch.int32, 1, 0, count))
        make.add(layer, "qzeros", make.packed_zeros(shape, self.group, torch.int32, 1, count))
        make.add(layer, "scales", make.per_group(shape, self.group, torch.float32, output_dim=1))
        if self.ordered and shape.split_inputs:
            raise ValueError(f"{shape.name}: GPTQ with desc_act cannot be split over tensor parallel ranks.")
        make.add(layer, "g_idx", make.per_input(shape, torch.int32))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        middle = 1 << (self.bits - 1)
        values = (unpack_int32(layer.qweight.data, self.bits, 0) - middle).t().to(torch.int8).contiguous()
        zero = None
        if not self.symmetric:
            # the subtraction of one wrapped around where the zero point was 0
            stored = unpack_int32(layer.qzeros.data, self.bits, 1).t().int() + self.shift
            zero = (stored % (1 << self.bits)).float() - middle
        read = QuantizedWeight(values, layer.scales.data.t().float().contiguous(), zero, shape.outputs)
        return read.ordered(layer.g_idx.data) if self.ordered else read
