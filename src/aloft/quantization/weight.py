"""What every checkpoint format is turned into, and every scheme starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class QuantizedWeight:
    """A linear layer's integers and how to read them: ``w = (values - zero) * scale``.

    values: int8 ``[N, K]``, signed codes. scale: float32 ``[N, G]``, G groups along K. zero: float32 ``[N, G]`` or
    None where symmetric. shards: output features of each original layer of a fused one, summing to N.
    input_scale, input_offset: float32 ``[shards]``, static activations: ``q = round(x / scale + offset)``.
    integer_bias: int32 ``[N]``, added to the integer product, offset's share included; None where the checkpoint
    carries none. order: int64 ``[K]``, the input feature each column of values belongs to; None for its own.
    left, right: the activation's Kronecker transform, ``[A, A]`` and ``[B, B]``; clip: its clipping.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    shards: tuple[int, ...]
    input_scale: torch.Tensor | None = None
    input_offset: torch.Tensor | None = None
    integer_bias: torch.Tensor | None = None
    order: torch.Tensor | None = None
    left: torch.Tensor | None = None
    right: torch.Tensor | None = None
    clip: torch.Tensor | None = None

    @property
    def group(self) -> int:
        """Columns that share a scale; 0 where a row has one."""
        return 0 if self.scale.shape[1] == 1 else self.values.shape[1] // self.scale.shape[1]

    def ordered(self, group_of_column: torch.Tensor) -> QuantizedWeight:
        """The same weight with the columns of each group side by side. group_of_column: ``[K]``.

        Raises:
            ValueError: the groups are not of one size.
        """
        groups, columns = self.scale.shape[1], self.values.shape[1]
        counts = torch.bincount(group_of_column.long().cpu(), minlength=groups)
        if len(counts) != groups or bool((counts != columns // groups).any()):
            raise ValueError(
                f"g_idx must name each of {groups} groups {columns // groups} times, not {counts.tolist()}"
            )
        order = torch.argsort(group_of_column.cpu(), stable=True)
        if torch.equal(order, torch.arange(columns)):
            return self
        order = order.to(self.values.device)
        return replace(self, values=self.values[:, order], order=order)

    def dequantized(self) -> torch.Tensor:
        """float32 ``[N, K]``, columns in the order of the layer's inputs."""
        made = (self.values.float() - spread(self.zero, self.values)) * spread(self.scale, self.values)
        return made if self.order is None else made[:, torch.argsort(self.order)]


def spread(part: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    """``[N, G]`` repeated to ``[N, K]``; zeros for None."""
    if part is None:
        return torch.zeros(1, 1, device=values.device)
    return part.repeat_interleave(values.shape[1] // part.shape[1], dim=1)


def kronecker_factors(size: int) -> tuple[int, int]:
    """The sides (left, right) of a Kronecker transform of ``size`` features: their product, as near as it gets.

    Raises:
        ValueError: right is no multiple of 8, which packed int4 needs.
    """
    middle = math.isqrt(size - 1) + 1
    while math.isqrt(middle * middle - size) ** 2 != middle * middle - size:
        middle += 1
    half = math.isqrt(middle * middle - size)
    if (middle + half) % 8:
        raise ValueError(f"{size} features have no Kronecker transform {middle - half} x {middle + half} in int4")
    return middle - half, middle + half


def unpack_int32(packed: torch.Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Unsigned codes from int32 words, the lowest bits first along ``dim`` (or in ``order``): int8, or int16.

    packed: int32 of any shape; the result has ``32 / bits`` times its size along ``dim``.
    """
    count = 32 // bits
    positions = order or tuple(range(count))
    mask = (1 << bits) - 1
    parts = [(packed >> (bits * position)) & mask for position in positions]
    stacked = torch.stack(parts, dim=dim + 1 if dim >= 0 else packed.dim() + dim + 1)
    shape = list(packed.shape)
    shape[dim] *= count
    return stacked.reshape(shape).to(torch.int16 if bits == 8 else torch.int8)


def unpack_nibbles(packed: torch.Tensor, dim: int) -> torch.Tensor:
    """Signed 4-bit codes from bytes that hold two of them along ``dim``, the low nibble first; int8."""
    low = ((packed << 4) >> 4).to(torch.int8)
    high = (packed >> 4).to(torch.int8)
    shape = list(packed.shape)
    shape[dim] *= 2
    return torch.stack((low, high), dim=dim + 1).reshape(shape)


def pack_nibbles(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The reverse of ``unpack_nibbles``: int8 codes in [-8, 7] to bytes, int8.

    Raises:
        ValueError: an odd number of codes along ``dim``.
    """
    if values.shape[dim] % 2:
        raise ValueError(f"{values.shape[dim]} 4-bit codes along dimension {dim} do not fill whole bytes")
    even = values.index_select(dim, torch.arange(0, values.shape[dim], 2, device=values.device))
    odd = values.index_select(dim, torch.arange(1, values.shape[dim], 2, device=values.device))
    return ((even & 0xF) | (odd << 4)).to(torch.int8)
