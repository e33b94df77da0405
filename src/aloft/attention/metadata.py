"""What one step tells every attention layer of a KV cache group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.attention.backend import AttentionMetadata, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec

if TYPE_CHECKING:
    from aloft.attention.captured import CapturedAttention


@dataclass(slots=True)
class AloftAttentionMetadata(AttentionMetadata):
    """Lengths on the host (the operators take integer lists), block table and slots on the device.

    num_tokens: T, tokens of the step. cu_query_lens: running total of query tokens, one entry per sequence, no
    leading 0, last entry T. kv_lens: tokens in the cache per sequence, this step's included. block_table: int32
    ``[B, max_blocks]``. slot_mapping: ``[T]``, block * block_size + offset of each token. Of a decode step being
    captured also kv_lens_device: kv_lens as int32 ``[B]``, and captured: what attends. Of a cache of 8-bit floats also
    recent: what to know about the cache of its newest tokens, and rows, made when asked for: ``[T]``, 0, 1, 2...
    """

    num_tokens: int
    cu_query_lens: list[int]
    kv_lens: list[int]
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int
    kv_lens_device: torch.Tensor | None = None
    captured: CapturedAttention | None = None
    recent: AloftAttentionMetadata | None = None
    rows: torch.Tensor | None = None


class AloftMetadataBuilder(AttentionMetadataBuilder[AloftAttentionMetadata]):
    """Builds the metadata from host copies only; never reads the device."""

    def __init__(self, kv_cache_spec: KVCacheSpec, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        assert isinstance(kv_cache_spec, AttentionSpec)
        self.block_size = kv_cache_spec.block_size

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> AloftAttentionMetadata:
        common = common_attn_metadata
        assert common.seq_lens_cpu_upper_bound is not None
        return AloftAttentionMetadata(
            num_tokens=common.num_actual_tokens,
            cu_query_lens=common.query_start_loc_cpu[1 : common.num_reqs + 1].tolist(),
            kv_lens=common.seq_lens_cpu_upper_bound[: common.num_reqs].tolist(),
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            block_size=self.block_size,
        )

    def build_captured(
        self,
        captured: CapturedAttention,
        kv_lens: torch.Tensor,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> AloftAttentionMetadata:
        """A decode step being captured, one token a sequence; replays bring the values. Tensors are ``[B, ...]``."""
        count = kv_lens.shape[0]
        return AloftAttentionMetadata(
            num_tokens=count,
            cu_query_lens=list(range(1, count + 1)),
            kv_lens=[1] * count,
            block_table=block_table,
            slot_mapping=slot_mapping,
            block_size=self.block_size,
            kv_lens_device=kv_lens,
            captured=captured,
        )
