"""The attention of one layer: write the new keys and values into the cache, attend over it.

Two operators serve it: ``npu_fused_infer_attention_score`` within its documented limits, and
``aloft.paged_attention`` for what lies outside of them (float32, soft cap, other head sizes). Which one is decided
once, when the layer is built. A cache of 8-bit floats has operators of its own, see ``aloft.attention.fp8``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from aloft.attention import fp8, int8
from aloft.attention.cache import Fp8Cache, KVCache, Place
from aloft.attention.metadata import AloftAttentionMetadata
from aloft.errors import UnsupportedFeature
from aloft.ops import decoder_layer, paged_attention

# torch_npu operator contracts, fused attention, packed (TND) layout: head sizes; sparse modes and mask
_FUSED_HEAD_SIZES = (64, 128)
_CAUSAL, _BAND = 3, 4
_MASK_SIZE = 2048
_EVERYTHING = 2147483647


@functools.lru_cache(maxsize=8)
def causal_mask(device: torch.device) -> torch.Tensor:
    """The compressed mask of the sparse modes: int8 ``[2048, 2048]``, 1 (hidden) strictly above the diagonal."""
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.int8).triu_(1).to(device)


def fused_serves(dtype: torch.dtype, head_size: int, num_heads: int, num_kv_heads: int, soft_cap: float) -> bool:
    """Whether the fused operator's documented limits cover this attention."""
    if soft_cap or head_size not in _FUSED_HEAD_SIZES or num_heads > 256 or num_heads // num_kv_heads > 64:
        return False
    return dtype == torch.bfloat16 or (dtype == torch.float16 and num_heads == num_kv_heads)


class AloftAttentionImpl(AttentionImpl[AloftAttentionMetadata]):
    """Grouped-query attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None:
            raise UnsupportedFeature("aloft does not support ALiBi attention yet.")
        if attn_type != AttentionType.DECODER:
            raise UnsupportedFeature(f"aloft supports decoder attention only, not {attn_type}.")
        paged_attention.ensure()
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.soft_cap = float(logits_soft_cap or 0.0)
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.window_left = -1 if sliding_window is None else sliding_window - 1
        self.sinks = sinks
        self.cache_scales: tuple[int8.CacheScales, int8.CacheScales] | None = None  # of an int8 cache
        self.fp8 = fp8.Fp8Keys(fp8.window()) if kv_cache_dtype in fp8.NAMES else None
        self._fused_serves: dict[torch.dtype, bool] = {}

    def forward(  # type: ignore[override]  # the cache is a pair, see aloft.runner.kv
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: KVCache | Fp8Cache,
        attn_metadata: AloftAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query ``[T, Hq, D]``, key, value ``[T, Hkv, D]``, caches ``[nb, bs, Hkv, D]``; writes and returns output."""
        assert output_scale is None and output_block_scale is None
        if attn_metadata is None:  # memory profiling: no cache yet
            return output.zero_()
        if self.kv_sharing_target_layer_name is None and key is not None:
            if self.cache_scales is not None:
                key, value = (scales.codes(x) for scales, x in zip(self.cache_scales, (key, value), strict=True))
            place = self.place(kv_cache, attn_metadata, key.dtype)
            decoder_layer.write_cache(key, value, *place)
            self.written(place, kv_cache, attn_metadata)
        self.attend(query, kv_cache, attn_metadata, output)
        return output

    def place(self, kv_cache: KVCache | Fp8Cache, metadata: AloftAttentionMetadata, dtype: torch.dtype) -> Place:
        """Where the step's keys and values, of ``dtype``, are to be written; ``written`` has to be called then."""
        if self.fp8 is None:
            return Place(kv_cache.key, kv_cache.value, metadata.slot_mapping)
        return self.fp8.place(self, kv_cache, metadata, dtype)  # type: ignore[arg-type]

    def written(self, place: Place, kv_cache: KVCache | Fp8Cache, metadata: AloftAttentionMetadata) -> None:
        """The step's keys and values are where ``place`` said."""
        if self.fp8 is not None:
            self.fp8.compress(place, kv_cache, metadata)  # type: ignore[arg-type]

    def attend(
        self,
        query: torch.Tensor,
        kv_cache: KVCache | Fp8Cache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
    ) -> None:
        """Attention over a cache that holds the step's keys and values already: writes output ``[T, Hq, D]``."""
        if isinstance(kv_cache, Fp8Cache):
            assert self.fp8 is not None
            self.fp8.attend(self, query, kv_cache, metadata, output)
        elif metadata.captured is not None:
            metadata.captured.attend(self, query, kv_cache, metadata, output)
        elif self.fused_serves(query.dtype):
            self._fused(query, kv_cache, metadata, output, metadata.kv_lens)
        else:
            self._paged(query, kv_cache, metadata, output, metadata.kv_lens)

    def fused_serves(self, dtype: torch.dtype) -> bool:
        """Whether the fused operator takes this layer's attention in ``dtype``."""
        known = self._fused_serves.get(dtype)
        if known is None:
            known = self.sinks is None and fused_serves(
                dtype, self.head_size, self.num_heads, self.num_kv_heads, self.soft_cap
            )
            if self.cache_scales is not None and not known:
                raise UnsupportedFeature(
                    "an int8 KV cache needs bfloat16 and the fused attention operator: head size 64 or 128, "
                    "no soft cap, no sinks."
                )
            self._fused_serves[dtype] = known
        return known

    def call_with_lengths(
        self, query: torch.Tensor, kv_cache: KVCache, metadata: AloftAttentionMetadata, output: torch.Tensor
    ) -> Callable[[Sequence[int]], None]:
        """The one operator call that attends, as a function of the lengths, with working memory for the largest."""
        if not self.fused_serves(query.dtype):
            return functools.partial(self._paged, query, kv_cache, metadata, output)
        arguments = self._fused_arguments(query, kv_cache, metadata)
        workspace = torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(
            query,
            kv_cache.key_rows,
            kv_cache.value_rows,
            actual_seq_lengths=metadata.cu_query_lens,
            actual_seq_lengths_kv=metadata.kv_lens,
            **arguments,
        )
        return functools.partial(self._fused, query, kv_cache, metadata, output, workspace=workspace)

    def _paged(
        self,
        query: torch.Tensor,
        kv_cache: KVCache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
        kv_lens: Sequence[int],
    ) -> None:
        torch.ops.aloft.paged_attention.out(
            query,
            kv_cache.key,
            kv_cache.value,
            metadata.block_table,
            metadata.cu_query_lens,
            kv_lens,
            self.num_kv_heads,
            self.scale,
            self.window_left,
            self.soft_cap,
            sinks=self.sinks,
            out=output,
        )

    def _fused(
        self,
        query: torch.Tensor,
        kv_cache: KVCache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
        kv_lens: Sequence[int],
        workspace: torch.Tensor | None = None,
    ) -> None:
        torch.ops.npu.npu_fused_infer_attention_score.out(
            query,
            kv_cache.key_rows,
            kv_cache.value_rows,
            actual_seq_lengths=metadata.cu_query_lens,
            actual_seq_lengths_kv=kv_lens,
            workspace=workspace,
            out=(output, _no_lse(query.device)),
            **self._fused_arguments(query, kv_cache, metadata),
        )

    def _fused_arguments(
        self, query: torch.Tensor, kv_cache: KVCache, metadata: AloftAttentionMetadata
    ) -> dict[str, Any]:
        window = self.window_left
        return {
            "atten_mask": causal_mask(query.device),
            "block_table": metadata.block_table,
            "num_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "scale": self.scale,
            "input_layout": "TND",
            "block_size": metadata.block_size,
            "sparse_mode": _CAUSAL if window < 0 else _BAND,
            "pre_tokens": _EVERYTHING if window < 0 else window,
            "next_tokens": 0,
            **(int8.arguments(*self.cache_scales) if self.cache_scales is not None else {}),
        }


@functools.lru_cache(maxsize=8)
def _no_lse(device: torch.device) -> torch.Tensor:
    """The place of a log-sum-exp nobody asked for."""
    return torch.empty(1, dtype=torch.float32, device=device)
