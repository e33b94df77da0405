"""The tensors of ModelSlim's linear layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.formats import parameters as make
from aloft.quantization.weight import QuantizedWeight, kronecker_factors, unpack_nibbles


def zero_point(offset: torch.Tensor) -> torch.Tensor | None:
    """ModelSlim's offset is subtracted from the code, as ours is; None where nothing is."""
    return offset.float() if bool((offset != 0).any()) else None


@dataclass(frozen=True)
class WideStorage(make.Unsigned):
    """``weight`` int8 ``[N, K]``, ``weight_scale`` and ``weight_offset`` ``[N, G]`` or ``[N, 1]``: one code a byte.

    group: the description's group size, which holds for all layers that have groups; others have a scale a row.
    """

    bits: int = 8
    group: int = 0

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        make.add(layer, "weight", make.weight(shape))
        make.add(layer, "weight_scale", make.per_group_or_row(shape, self.group, torch.float32))
        make.add(layer, "weight_offset", make.per_group_or_row(shape, self.group, torch.float32))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        scale, offset = layer.weight_scale.data.float(), layer.weight_offset.data
        if all(bool((part == part[:, :1]).all()) for part in (scale, offset)):
            scale, offset = scale[:, :1], offset[:, :1]
        return QuantizedWeight(layer.weight.data, scale, zero_point(offset), shape.outputs)


@dataclass(frozen=True)
class StaticStorage(WideStorage):
    """And the activation's scale and offset; ``quant_bias`` int32 ``[N]``, ``deq_scale`` ``[N]``."""

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        super().create(layer, shape)
        make.add(layer, "input_scale", make.per_tensor(shape))
        make.add(layer, "input_offset", make.per_tensor(shape))
        make.add(layer, "quant_bias", make.per_row(shape, torch.int32))
        # fp32 for bf16 models; for fp16 models int64, whose low half are the bits of the fp32 value
        make.add(
            layer, "deq_scale", make.per_row(shape, torch.int64 if shape.dtype == torch.float16 else torch.float32)
        )

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        plain = super().read(layer, shape)
        if plain.zero is not None:
            raise ValueError(f"{shape.name}: weight_offset must be 0 for W8A8, whose operator knows no weight offset.")
        return QuantizedWeight(
            plain.values,
            plain.scale,
            None,
            shape.outputs,
            input_scale=layer.input_scale.data.float(),
            input_offset=layer.input_offset.data.float(),
            integer_bias=layer.quant_bias.data,
        )


@dataclass(frozen=True)
class BothStorage(StaticStorage):
    """The same tensors, for activations quantized per token (W8A8_MIX): those of static ones are not used."""

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        return WideStorage.read(self, layer, shape)


@dataclass(frozen=True)
class NibbleStorage(make.Unsigned):
    """Two codes a byte (``packed``, version 1) along the outputs or the inputs, or one; scales per row or group.

    With two levels the scale of a group is the row's scale times the group's ``weight_scale_second``. biased: there is
    ``scale_bias``, which follows from the weights and is not read.
    """

    group: int
    packed: bool
    two_level: bool = False
    along_inputs: bool = False
    biased: bool = False

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        rows = sum(shape.outputs)
        if self.packed and self.along_inputs:
            stored = make.packed_weight(shape, (rows, shape.inputs // 2), torch.int8, 0, 1, 2)
        elif self.packed:
            stored = make.packed_weight(shape, (rows // 2, shape.inputs), torch.int8, 0, 0, 2)
        else:
            stored = make.weight(shape)
        make.add(layer, "weight", stored)
        first = 0 if self.two_level else self.group
        make.add(layer, "weight_scale", make.per_group(shape, first, torch.float32))
        make.add(layer, "weight_offset", make.per_group(shape, first, torch.float32))
        if self.two_level:
            make.add(layer, "weight_scale_second", make.per_group(shape, self.group, torch.float32))
            make.add(layer, "weight_offset_second", make.per_group(shape, self.group, torch.float32))
        if self.biased:
            make.add(layer, "scale_bias", make.unread(shape))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        values = layer.weight.data
        if self.packed:
            values = unpack_nibbles(values, int(self.along_inputs))
        scale, offset = layer.weight_scale.data.float(), layer.weight_offset.data
        if self.two_level:
            if zero_point(offset) is not None:
                raise ValueError(f"{shape.name}: weight_offset must be 0 beside weight_offset_second.")
            scale, offset = scale * layer.weight_scale_second.data.float(), layer.weight_offset_second.data
        return QuantizedWeight(values, scale, zero_point(offset), shape.outputs)


@dataclass(frozen=True)
class RotatedStorage(WideStorage):
    """4-bit codes a byte, and the activation's Kronecker transform: ``left_trans``, ``right_trans``, ``clip_ratio``."""

    bits: int = 4

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        if shape.split_inputs:
            raise ValueError(f"{shape.name}: a Kronecker transform cannot be split over tensor parallel ranks.")
        super().create(layer, shape)
        left, right = kronecker_factors(shape.inputs)
        for name, size in (("left_trans", (left, left)), ("right_trans", (right, right)), ("clip_ratio", (1,))):
            make.add(layer, name, make.whole(shape, size, shape.dtype if len(size) == 2 else torch.float32))

    def read(self, layer: Any, shape: LayerShape) -> QuantizedWeight:
        plain = super().read(layer, shape)
        return replace(
            plain, left=layer.left_trans.data, right=layer.right_trans.data, clip=layer.clip_ratio.data.float()
        )
