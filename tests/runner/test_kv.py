"""The KV cache's allocation: every layer's keys and values in their own bytes, whole blocks copied and cleared."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

from aloft.errors import UnsupportedFeature
from aloft.layers.registry import replace
from aloft.runner import kv

DEVICE = torch.device("npu:0")
NUM_BLOCKS = 5


def config(*layers, dtype=torch.bfloat16, **changes):
    spec = FullAttentionSpec(**({"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": dtype} | changes))
    page = spec.page_size_bytes
    tensor = KVCacheTensor(
        size=len(layers) * NUM_BLOCKS * page,
        layers=list(layers),
        layer_stride=NUM_BLOCKS * page,
        block_stride=page,
    )
    return KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[KVCacheGroupSpec(layer_names=list(layers), kv_cache_spec=spec)],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_views_fill_the_allocation_without_overlap(dtype):
    caches = kv.allocate(config("a", "b", dtype=dtype), DEVICE)
    halves = [half for cache in caches.values() for half in (cache.key, cache.value)]
    assert all(half.shape == (NUM_BLOCKS, 16, 2, 8) and half.is_contiguous() for half in halves)
    for number, half in enumerate(halves):
        half.fill_(number + 1)
    assert [half.unique().tolist() for half in halves] == [[1.0], [2.0], [3.0], [4.0]]
    storage = halves[0].untyped_storage()
    assert sum(half.numel() * half.element_size() for half in halves) == storage.nbytes()
    rows = caches["b"].key_rows
    assert rows.shape == (NUM_BLOCKS, 16, 16) and rows.data_ptr() == caches["b"].key.data_ptr()


def test_whole_blocks_are_copied_and_cleared():
    caches = kv.allocate(config("a", "b"), DEVICE)
    caches["c"] = caches["b"]  # a layer that shares
    for cache in (caches["a"], caches["b"]):
        for half in (cache.key, cache.value):
            half.copy_(torch.arange(NUM_BLOCKS).view(-1, 1, 1, 1).expand_as(half))
    kv.copy_blocks(caches.values(), [(1, 3), (2, 4)], DEVICE)
    kv.zero_blocks(caches.values(), [2], DEVICE)
    kv.copy_blocks(caches.values(), [], DEVICE)
    for cache in caches.values():
        for half in (cache.key, cache.value):
            assert half.amax((1, 2, 3)).tolist() == half.amin((1, 2, 3)).tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("changes", [{"head_size_v": 4}, {"page_size_padded": 4096}])
def test_other_pages_are_refused(changes):
    with pytest.raises(UnsupportedFeature):
        kv.allocate(config("a", **changes), DEVICE)


def test_a_layer_is_replaced_once():
    from vllm.model_executor.layers.activation import SiluAndMul

    from aloft import layers
    from aloft.layers.activation import AloftSiluAndMul

    layers.register()
    layers.register()
    other = type("Other", (SiluAndMul,), {})
    with pytest.raises(ValueError, match="AloftSiluAndMul"):
        replace(SiluAndMul, other)
    with pytest.raises(TypeError):
        replace(torch.nn.Linear, torch.nn.Linear)
    assert AloftSiluAndMul.name == "silu_and_mul"
