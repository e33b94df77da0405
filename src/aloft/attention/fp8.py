"""Keys and values as 8-bit floats: how a step writes and reads them.

Every token is written twice: as it is into a cache that only keeps the newest ``kv_fp8_window`` tokens of a sequence,
and, from there, compressed into one that keeps all. A query reads the tokens of the window in full width and older
ones compressed, wherever chunks end and whatever comes from the prefix cache. For vLLM the window's cache is a layer of
its own with a sliding window, which is how its blocks are allocated, freed and found again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.config import get_current_vllm_config_or_none

from aloft import config, limits
from aloft.attention.cache import Fp8Cache, Place
from aloft.ops import fp8_cache

if TYPE_CHECKING:
    from aloft.attention.impl import AloftAttentionImpl
    from aloft.attention.metadata import AloftAttentionMetadata

NAMES = limits.FP8
#: behind a layer's name: the window's cache
RECENT = ".recent"


def window() -> int:
    """``kv_fp8_window`` of the engine whose model is being built."""
    return config.of(get_current_vllm_config_or_none()).kv_fp8_window


class Fp8Keys:
    """Writes and reads the cache of one layer.

    window: tokens, the query's own included, that are read in full width; 0 for none.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        fp8_cache.ensure()

    def place(
        self, layer: AloftAttentionImpl, cache: Fp8Cache, metadata: AloftAttentionMetadata, dtype: torch.dtype
    ) -> Place:
        """Where keys and values of ``dtype`` go first: the window's cache, or memory of this step."""
        if cache.recent is not None:
            assert metadata.recent is not None
            return Place(cache.recent.key, cache.recent.value, metadata.recent.slot_mapping)
        count = metadata.slot_mapping.shape[0]
        if metadata.rows is None:
            metadata.rows = torch.arange(count, dtype=torch.int32, device=cache.key.device)
        shape = (1, count, layer.num_kv_heads, layer.head_size)
        key, value = (torch.empty(shape, dtype=dtype, device=cache.key.device) for _ in range(2))
        return Place(key, value, metadata.rows)

    def compress(self, place: Place, cache: Fp8Cache, metadata: AloftAttentionMetadata) -> None:
        """Takes the step's keys and values from where they were written first."""
        torch.ops.aloft.compress_kv(
            place.key.flatten(0, 1), place.value.flatten(0, 1), *cache[:4], metadata.slot_mapping, place.slots
        )

    def attend(
        self,
        layer: AloftAttentionImpl,
        query: torch.Tensor,
        cache: Fp8Cache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
    ) -> None:
        """As ``AloftAttentionImpl.attend``. A captured step reads the lengths when it is replayed."""
        recent = cache.recent
        window = 0 if recent is None else self.window
        torch.ops.aloft.fp8_attention.out(
            query,
            *cache[:4],
            metadata.block_table,
            metadata.cu_query_lens,
            metadata.kv_lens,
            layer.num_kv_heads,
            layer.scale,
            window,
            None if recent is None else recent.key,
            None if recent is None else recent.value,
            None if metadata.recent is None or recent is None else metadata.recent.block_table,
            layer.window_left,
            layer.soft_cap,
            layer.sinks,
            metadata.kv_lens_device,
            out=output,
        )
