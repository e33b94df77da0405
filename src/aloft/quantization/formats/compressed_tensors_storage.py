"""The tensors of compressed-tensors' linear layers. Zero points are signed codes, subtracted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.formats import parameters as make
from aloft.quantization.weight import QuantizedWeight, unpack_int32


@dataclass(frozen=True)
class BytesStorage(make.Unsigned):
    """``weight`` int8 ``[N, K]``, ``weight_scale`` ``[N, G]``, or ``[1]`` where ``per_tensor``; zeros if asymmetric."""

    group: int
    symmetric: bool
    static: bool
    input_symmetric: bool = True
    per_tensor: bool = False

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        make.add(layer, "weight", make.weight(shape))
        scale = make.per_tensor(shape) if self.per_tensor else make.per_group(shape, self.group, torch.float32)
        make.add(layer, "weight_scale", scale)
        if not self.symmetric:
            zero = make.per_tensor(shape) if self.per_tensor else make.per_group(shape, self.group, torch.int8)
            make.add(layer, "weight_zero_point", zero)
        if self.static:
            make.add(layer, "input_scale", make.per_tensor(shape))
            if not self.input_symmetric:
                make.add(layer, "input_zero_point", make.per_tensor(shape))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        scale, zero = layer.weight_scale.data.float(), None
        if not self.symmetric:
            zero = layer.weight_zero_point.data.float()
        if self.per_tensor:
            counts = torch.tensor(shape.outputs, device=scale.device)
            scale = scale.repeat_interleave(counts)[:, None]
            zero = None if zero is None else zero.repeat_interleave(counts)[:, None]
        read = QuantizedWeight(layer.weight.data, scale, zero, shape.outputs)
        if self.static:
            offset = torch.zeros_like(layer.input_scale.data)
            if not self.input_symmetric:
                offset = layer.input_zero_point.data.float()
            read = replace(read, input_scale=layer.input_scale.data.float(), input_offset=offset)
        return read


@dataclass(frozen=True)
class PackedStorage(make.Unsigned):
    """``weight_packed`` int32 ``[N, K / n]`` of codes plus ``2**(bits - 1)``, lowest bits first; scales ``[N, G]``."""

    bits: int
    group: int
    symmetric: bool
    ordered: bool
    static: bool

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        rows, count = sum(shape.outputs), 32 // self.bits
        if self.static:
            raise ValueError(f"{shape.name}: static activations need the format int-quantized.")
        if shape.inputs % count or (not self.symmetric and any(part % count for part in shape.outputs)):
            raise ValueError(f"{shape.name}: {shape.inputs} x {shape.outputs} codes do not fill whole int32 words.")
        stored = make.packed_weight(shape, (rows, shape.inputs // count), torch.int32, 0, 1, count)
        make.add(layer, "weight_packed", stored)
        make.add(layer, "weight_scale", make.per_group(shape, self.group, torch.float32))
        if not self.symmetric:
            make.add(layer, "weight_zero_point", make.packed_zeros(shape, self.group, torch.int32, 0, count))
        if self.ordered:
            if shape.split_inputs:
                raise ValueError(f"{shape.name}: weights in activation order cannot be split over ranks.")
            make.add(layer, "weight_g_idx", make.per_input(shape, torch.int32))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        middle = 1 << (self.bits - 1)
        values = (unpack_int32(layer.weight_packed.data, self.bits, 1) - middle).to(torch.int8)
        zero = None
        if not self.symmetric:
            zero = unpack_int32(layer.weight_zero_point.data, self.bits, 0).float() - middle
        read = QuantizedWeight(values, layer.weight_scale.data.float(), zero, shape.outputs)
        return read.ordered(layer.weight_g_idx.data) if self.ordered else read
