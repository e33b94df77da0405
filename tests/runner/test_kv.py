"""The KV cache's allocation: every layer's keys and values in their own bytes, whole blocks copied and cleared."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, KVQuantMode

from aloft.attention.backend import AloftAttentionBackend
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_block_is_of_8_bit_floats_or_of_the_newest_tokens(dtype):
    """Both caches lie in the same bytes; what one block holds, in either of them, no other block does."""
    plain = FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=8, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR
    )
    spec = AloftAttentionBackend.customize_spec(plain)
    recent = kv._recent(spec, 20, dtype)
    assert spec.page_size_bytes == recent.page_size_bytes == 2 * 16 * (2 * 8 + 1)
    assert recent.block_size * dtype.itemsize == 16
    page = spec.page_size_bytes
    groups = [["a", "b"], ["a.recent", "b.recent"]]
    place = {"size": 2 * NUM_BLOCKS * page, "layer_stride": NUM_BLOCKS * page, "block_stride": page}
    made = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[KVCacheTensor(layers=names, **place) for names in groups],
        kv_cache_groups=[KVCacheGroupSpec(names, each) for names, each in zip(groups, (spec, recent), strict=True)],
    )
    caches = kv.allocate(made, DEVICE, dtype)
    assert set(caches) == {"a", "b"}
    kv.zero_blocks(caches.values(), range(NUM_BLOCKS), DEVICE)
    for number, cache in enumerate(caches.values()):  # blocks 1 and 3: 8-bit floats, 2 and 4: the newest tokens
        for part in cache[:4]:
            part[1::2] = 10 + number
        for part in cache.recent.tensors():
            part[2::2] = 20 + number
    kv.copy_blocks(caches.values(), [(3, 0)], DEVICE)
    for number, cache in enumerate(caches.values()):
        assert all((part[[0, 1, 3]] == 10 + number).all() for part in cache[:4])
        assert all((part[[2, 4]] == 20 + number).all() for part in cache.recent.tensors())
    kv.zero_blocks(caches.values(), [1, 2], DEVICE)
    for number, cache in enumerate(caches.values()):
        assert not any(part[1].any() for part in cache[:4]) and (cache.key[3] == 10 + number).all()
        assert not any(part[2].any() for part in cache.recent.tensors()) and (cache.recent.key[4] == 20 + number).all()


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
