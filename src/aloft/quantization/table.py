"""Quantized vocabulary tables: the rows of tokens, dequantized, and the product of a head that is tied to the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from aloft.ops.compact import compact
from aloft.ops.projection import DYNAMIC, WEIGHT_ONLY, Projection
from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int8_matrix, to_nz
from aloft.quantization.linear import LinearScheme
from aloft.quantization.weight import QuantizedWeight

#: rows of the table that are packed, or dequantized for an int8 head, at a time
_ROWS = 16384


class Table(LinearScheme):
    """``rows[t] = (codes[id of t] + offset) * scale``, the weights' own rounding to 4 or 8 bits undone.

    The table stays as it is looked up: ``[vocab, hidden]`` int8, or int4 packed along the features in int32
    ``[vocab, hidden / 8]``. A tied head can multiply with its transposed view.
    """

    operators: ClassVar[tuple[str, ...]] = ("aten::index_select", "npu::npu_weight_quant_batchmatmul")
    bits: ClassVar[int]
    #: of a tied head's product
    kind: ClassVar[int] = WEIGHT_ONLY

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        """``packed``; ``scale`` and ``offset`` ``[vocab]`` or ``[groups, vocab]``, as the head's product takes them."""
        if weight.order is not None:
            raise ValueError(f"{shape.name}: weights in activation order are not served in vocabulary tables.")
        if weight.group % 32:
            raise ValueError(f"{shape.name}: groups must be a multiple of 32 features, not {weight.group}.")
        if self.kind == DYNAMIC and (weight.zero is not None or weight.group):
            raise ValueError(f"{shape.name}: W8A8 tables take symmetric weights with one scale a row.")
        self.group, self.groups, self.dtype = weight.group, weight.scale.shape[1], shape.dtype
        held = torch.float32 if self.kind == DYNAMIC else shape.dtype
        made = {"packed": self._packed(weight.values, shape), "scale": _by_row(weight.scale).to(held)}
        if weight.zero is not None:
            made["offset"] = _by_row(-weight.zero).to(held)
        if self.bits == 4:  # npu_anti_quant takes scales of float32 for float16 results
            unit = torch.float32 if shape.dtype == torch.float16 else shape.dtype
            made["unit"] = torch.ones(weight.values.shape[1], dtype=unit, device=weight.values.device)
        return made

    def _packed(self, values: torch.Tensor, shape: LayerShape) -> torch.Tensor:
        if self.bits == 8:
            return values.contiguous()
        if values.shape[1] % 8:
            raise ValueError(f"{shape.name}: 4-bit tables need a multiple of 8 features, not {values.shape[1]}.")
        pack = torch.ops.npu.npu_convert_weight_to_int4pack
        return torch.cat([pack(part.to(torch.int32).contiguous()) for part in values.split(_ROWS)])

    def rows(self, layer: Any, ids: torch.Tensor) -> torch.Tensor:
        """ids int32 or int64 ``[T]`` to ``[T, hidden]`` in the model's dtype."""
        codes = layer.packed.index_select(0, ids)
        if self.bits == 4:
            codes = torch.ops.npu.npu_anti_quant(codes, layer.unit, dst_dtype=self.dtype)
        scale = self._of(layer.scale, ids)
        offset = getattr(layer, "offset", None)
        values = codes.to(self.dtype).view(len(ids), self.groups, codes.shape[1] // self.groups)
        if offset is not None:  # GGUF's are no integers: rounded once, at the end
            values, scale = values.float() + self._of(offset, ids), scale.float()
        return (values * scale).to(self.dtype).view(codes.shape)

    def _of(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """``[T, groups, 1]``."""
        return numbers.index_select(-1, ids).t().reshape(len(ids), self.groups, 1)

    def projection(self, layer: Any, bias: torch.Tensor | None) -> Projection:
        return Projection(layer.packed.t(), bias, self.kind, self.group, layer.scale, getattr(layer, "offset", None))

    def int8_head(self, layer: Any) -> Projection:
        """The product of a tied head with activations in int8: with the table's own codes where a row has one scale."""
        if self.bits == 8 and not self.group and not hasattr(layer, "offset"):
            return Projection(layer.packed.t(), None, DYNAMIC, 0, layer.scale.float())
        parts = [torch.ops.npu.npu_dynamic_quant(part) for part in self._all(layer)]
        codes, scale = (torch.cat(each) for each in zip(*parts, strict=True))
        return Projection(int8_matrix(codes, self.nz), None, DYNAMIC, 0, scale)

    def float_head(self, layer: Any, compacted: bool) -> Projection:
        """The product of a tied head with a dequantized copy in FRACTAL_NZ, ``compacted`` where the runtime can."""
        packed = to_nz(torch.cat(list(self._all(layer))).t().contiguous())
        if compacted:
            compact(packed)
        return Projection(packed)

    def _all(self, layer: Any) -> Iterator[torch.Tensor]:
        """All rows, some at a time."""
        ids = torch.arange(layer.packed.shape[0], device=layer.packed.device)
        return (self.rows(layer, part) for part in ids.split(_ROWS))


def _by_row(numbers: torch.Tensor) -> torch.Tensor:
    """``[N, G]`` to ``[G, N]``, or to ``[N]`` for one group."""
    return numbers.flatten() if numbers.shape[1] == 1 else numbers.t().contiguous()
