"""The backend class: what vLLM may ask of our attention, and which KV cache layout it wants."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVQuantMode
from vllm.v1.kv_cache_layout import KVCacheLayout

from aloft.attention import NAME, fp8

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec


class AloftAttentionBackend(AttentionBackend):
    """Grouped-query attention on a paged cache, causal, with or without a sliding window."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list] = ["auto", "float16", "bfloat16", *fp8.NAMES]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type:
        from aloft.attention.impl import AloftAttentionImpl

        return AloftAttentionImpl

    @staticmethod
    def get_builder_cls() -> type:
        from aloft.attention.metadata import AloftMetadataBuilder

        return AloftMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """A token of 8-bit floats takes a byte an element, and one more for keys and one for values: their scale."""
        if spec.kv_quant_mode != KVQuantMode.FP8_PER_TENSOR:  # what vLLM calls every fp8 cache
            return spec
        content = (spec.head_size + spec.head_size_v) * spec.num_kv_heads + 2
        return dataclasses.replace(spec, dtype=torch.uint8, num_head_slots=1, state_content_bytes=content)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 0 < head_size <= 512

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_compute_capability(cls, capability: object) -> bool:
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """One contiguous region a layer, one page a block; K and V halves are laid out by ``aloft.runner.kv``."""
        return (KVCacheLayout.LBNHC,)
