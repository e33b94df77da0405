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
