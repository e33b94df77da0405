"""The KV cache of one layer, in the shapes its operators take."""

from __future__ import annotations

from typing import NamedTuple

import torch


class KVCache(NamedTuple):
    """Keys and values, each ``[num_blocks, block_size, kv_heads, head_size]``; *_rows join the last two dimensions."""

    key: torch.Tensor
    value: torch.Tensor
    key_rows: torch.Tensor
    value_rows: torch.Tensor

    @classmethod
    def of(cls, key: torch.Tensor, value: torch.Tensor) -> KVCache:
        return cls(key, value, key.flatten(2), value.flatten(2))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything that blocks are made of, blocks first."""
        return self.key, self.value


class Fp8Cache(NamedTuple):
    """Keys and values as 8-bit floats, see ``aloft.ops.fp8_cache``, and the newest of them as they were.

    key, value: uint8 ``[num_blocks, block_size, kv_heads, head_size]``; exponents int8 ``[num_blocks, block_size]``.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_exponents: torch.Tensor
    value_exponents: torch.Tensor
    recent: KVCache | None = None  # blocks of its own, of another size

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything that blocks are made of, blocks first."""
        return self[:4] + (self.recent.tensors() if self.recent is not None else ())


class Place(NamedTuple):
    """Where a step's keys and values are written: caches as in ``KVCache`` and a slot, int ``[T]``, a token."""

    key: torch.Tensor
    value: torch.Tensor
    slots: torch.Tensor
