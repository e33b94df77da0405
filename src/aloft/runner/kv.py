"""The KV cache: which pages the layers need, one lazily backed allocation, and the views the operators take.

The planner thinks in pages of one block of one layer. Inside a layer's region the first half holds the keys of all
blocks and the second half the values, because the attention operators want two contiguous tensors; block b of a
layer therefore lives at two places, each half a page long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.config.vllm import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec, UniformTypeKVCacheSpecs

from aloft.attention.cache import KVCache
from aloft.errors import UnsupportedFeature


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
    return specs, shared


def _wanted(spec: AttentionSpec, layer: Any) -> AttentionSpec:
    """The spec after the backend, and the checkpoint's quantization of the cache, had their say."""
    made = layer.get_attn_backend().customize_spec(spec)
    return dataclasses.replace(made, dtype=torch.int8) if has_int8({"": layer}) else made


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


def allocate(config: KVCacheConfig, device: torch.device) -> dict[str, KVCache]:
    """Keys and values of every layer, each ``[num_blocks, block_size, kv_heads, head_size]``.

    The memory is not touched: the device backs it page by page as blocks are written.
    """
    caches: dict[str, KVCache] = {}
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
            caches[layer] = _views(raw, start, num_blocks, spec)
    return caches


def _views(raw: torch.Tensor, start: int, num_blocks: int, spec: AttentionSpec) -> KVCache:
    half = num_blocks * spec.page_size_bytes // 2
    shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
    key = raw[start : start + half].view(spec.dtype).view(shape)
    value = raw[start + half : start + 2 * half].view(spec.dtype).view(shape)
    return KVCache.of(key, value)


def bind(caches: dict[str, KVCache], shared: dict[str, str], layers: dict[str, Any]) -> None:
    """Gives every attention layer its cache, its own or the one it shares."""
    for name, target in shared.items():
        caches[name] = caches[target]
    for name, cache in caches.items():
        layers[name].bind_kv_cache(cache)


def copy_blocks(caches: Iterable[KVCache], copies: Sequence[tuple[int, int]], device: torch.device) -> None:
    """Copies whole blocks (source, destination) in every distinct cache."""
    if not copies:
        return
    source, destination = torch.tensor(copies, dtype=torch.int64).to(device).unbind(1)
    for half in _distinct(caches):
        half[destination] = half[source]


def zero_blocks(caches: Iterable[KVCache], blocks: Sequence[int], device: torch.device) -> None:
    """Clears whole blocks in every distinct cache."""
    if not blocks:
        return
    index = torch.tensor(blocks, dtype=torch.int64).to(device)
    for half in _distinct(caches):
        half.index_fill_(0, index, 0)


def _distinct(caches: Iterable[KVCache]) -> list[torch.Tensor]:
    return list({half.data_ptr(): half for cache in caches for half in (cache.key, cache.value)}.values())
