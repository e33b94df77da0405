"""The KV cache: which pages the layers need, one lazily backed allocation, and the views the operators take.

The planner thinks in pages of one block of one layer. Inside a layer's region the first half holds the keys of all
blocks and the second half the values, because the attention operators want two contiguous tensors; block b of a
layer therefore lives at two places, each half a page long. Behind both, 8-bit floats have the exponents of all keys
and of all values. The cache of their newest tokens, in full width, lies in the same region: a block belongs to one of
the two at a time, and its halves are at the same places in both, since blocks of the wider type hold fewer tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from vllm.config import VllmConfig
from vllm.config.vllm import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from aloft.attention import fp8
from aloft.attention.cache import Fp8Cache, KVCache
from aloft.errors import UnsupportedFeature

Cache = KVCache | Fp8Cache
_TILE = 64  # tokens that attention kernels read at once


def attention_layers(vllm_config: VllmConfig) -> dict[str, Any]:
    """The model's layers that attend, by name."""
    return get_layers_from_vllm_config(vllm_config, AttentionLayerBase)  # type: ignore[type-abstract]


def layers_and_specs(vllm_config: VllmConfig) -> tuple[dict[str, KVCacheSpec], dict[str, str]]:
    """Specs of the layers that own a cache, and for the others the layer whose cache they share."""
    specs: dict[str, KVCacheSpec] = {}
    shared: dict[str, str] = {}
    for name, layer in attention_layers(vllm_config).items():
        target = getattr(layer, "kv_sharing_target_layer_name", None)
        if target:
            shared[name] = target
            continue
        spec = layer.get_kv_cache_spec(vllm_config)
        if spec is not None:
            specs[name] = _wanted(spec, layer) if isinstance(spec, AttentionSpec) else spec
            window = fp8_window(layer)
            if window:
                own = specs[name]
                assert isinstance(own, AttentionSpec)
                if isinstance(own, SlidingWindowSpec):
                    specs[name] = own = dataclasses.replace(own, sliding_window=own.sliding_window + _TILE - 1)
                specs[name + fp8.RECENT] = _recent(own, window, cast(torch.dtype, vllm_config.model_config.dtype))
    return specs, shared


def _wanted(spec: AttentionSpec, layer: Any) -> AttentionSpec:
    """The spec after the backend, and the checkpoint's quantization of the cache, had their say."""
    made = layer.get_attn_backend().customize_spec(spec)
    return dataclasses.replace(made, dtype=torch.int8) if has_int8({"": layer}) else made


def fp8_window(layer: Any) -> int:
    """Tokens a layer keeps in full width beside its 8-bit floats; 0: none, or its keys are something else."""
    keys = getattr(layer.impl, "fp8", None)
    return 0 if keys is None else keys.window


def _recent(spec: AttentionSpec, window: int, dtype: torch.dtype) -> SlidingWindowSpec:
    """The cache of the newest tokens, in blocks of as many bytes.

    Kernels read whole tiles, whose front may lie in blocks that were given away meanwhile. 8-bit floats taken for
    bfloat16 or float32 are finite; taken for float16, or other bytes taken for 8-bit floats, they may not be: then
    tokens are kept until no tile has them. vLLM is told of bytes, not of the type: where it sees two types, it wants
    every new block cleared.
    """
    block_size = spec.block_size // dtype.itemsize
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        dtype=spec.dtype,
        kv_quant_mode=spec.kv_quant_mode,
        num_head_slots=1,
        state_content_bytes=spec.page_size_bytes // block_size,
        sliding_window=window + (_TILE - 1 if dtype == torch.float16 else 0),
    )


def has_fp8(layers: dict[str, Any]) -> bool:
    """Whether a layer keeps its keys and values as 8-bit floats."""
    return any(getattr(layer.impl, "fp8", None) is not None for layer in layers.values())


def has_int8(layers: dict[str, Any]) -> bool:
    """Whether a layer keeps its keys and values as int8."""
    return any(getattr(layer.impl, "cache_scales", None) is not None for layer in layers.values())


def layer_spec(spec: KVCacheSpec, layer: str) -> AttentionSpec:
    """The spec of one layer of a group.

    Raises:
        UnsupportedFeature: the layer keeps something other than keys and values of one width, or padded pages.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = spec.kv_cache_specs[layer]
    if not isinstance(spec, AttentionSpec) or spec.head_size != spec.head_size_v:
        raise UnsupportedFeature(f"aloft does not support the KV cache of {layer} yet: {type(spec).__name__}.")
    if spec.page_size_bytes != spec.unpadded_page_size_bytes:
        raise UnsupportedFeature(f"aloft does not support padded KV cache pages yet ({layer}).")
    return spec


def allocate(config: KVCacheConfig, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> dict[str, Cache]:
    """Keys and values of every layer, each ``[num_blocks, block_size, kv_heads, head_size]``.

    The memory is not touched: the device backs it page by page as blocks are written. dtype: of the newest tokens
    beside 8-bit floats.
    """
    caches: dict[str, Cache] = {}
    recent: dict[str, KVCache] = {}
    if not config.kv_cache_tensors:
        return caches
    (size,) = {tensor.size for tensor in config.kv_cache_tensors}
    raw = torch.empty(size, dtype=torch.int8, device=device)
    specs = {name: group.kv_cache_spec for group in config.kv_cache_groups for name in group.layer_names}
    for tensor in config.kv_cache_tensors:
        num_blocks = config.num_blocks_of(tensor)
        for index, layer in enumerate(tensor.layers):
            spec = layer_spec(specs[layer], layer)
            assert tensor.block_stride == spec.page_size_bytes, "the layout we ask for keeps a layer's blocks together"
            start = tensor.offset + index * tensor.layer_stride
            region = raw[start : start + num_blocks * spec.page_size_bytes]
            if layer.endswith(fp8.RECENT):
                recent[layer.removesuffix(fp8.RECENT)] = KVCache.of(*_halves(region, num_blocks, spec, dtype))
            elif spec.kv_quant_mode == KVQuantMode.FP8_PER_TENSOR:
                key, value = _halves(region, num_blocks, spec, torch.uint8)
                exponents = region[2 * key.numel() :].view(2, num_blocks, spec.block_size)
                caches[layer] = Fp8Cache(key, value, exponents[0], exponents[1])
            else:
                caches[layer] = KVCache.of(*_halves(region, num_blocks, spec, spec.dtype))
    for layer, newest in recent.items():
        own = caches[layer]
        assert isinstance(own, Fp8Cache) and own.key[0].nbytes == newest.key[0].nbytes, "blocks lie at the same places"
        caches[layer] = own._replace(recent=newest)
    return caches


def _halves(
    region: torch.Tensor, num_blocks: int, spec: AttentionSpec, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in a layer's bytes."""
    shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
    half = math.prod(shape) * dtype.itemsize
    key, value = (region[start : start + half].view(dtype).view(shape) for start in (0, half))
    return key, value


def bind(caches: dict[str, Cache], shared: dict[str, str], layers: dict[str, Any]) -> None:
    """Gives every attention layer its cache, its own or the one it shares."""
    for name, target in shared.items():
        caches[name] = caches[target]
    for name, cache in caches.items():
        layers[name].bind_kv_cache(cache)


def copy_blocks(caches: Iterable[Cache], copies: Sequence[tuple[int, int]], device: torch.device) -> None:
    """Copies whole blocks (source, destination) in every distinct cache."""
    if not copies:
        return
    source, destination = torch.tensor(copies, dtype=torch.int64).to(device).unbind(1)
    for half in _distinct(caches):
        half[destination] = half[source]


def zero_blocks(caches: Iterable[Cache], blocks: Sequence[int], device: torch.device) -> None:
    """Clears whole blocks in every distinct cache."""
    if not blocks:
        return
    index = torch.tensor(blocks, dtype=torch.int64).to(device)
    for half in _distinct(caches):
        half.index_fill_(0, index, 0)


def _distinct(caches: Iterable[Cache]) -> list[torch.Tensor]:
    return list({part.data_ptr(): part for cache in caches for part in cache.tensors()}.values())
