"""Contract of npu_scatter_pa_kv_cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker

DTYPES = (torch.float16, torch.bfloat16, torch.int8)


def scatter(tokens: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, nz: bool) -> None:
    """Writes each token to its slot of the cache; negative slots are skipped."""
    size = cache.size(2 if nz else 1)
    for token, slot in zip(tokens, slots.tolist(), strict=True):
        if slot < 0:
            continue
        if nz:
            cache[slot // size, :, slot % size] = token.reshape(cache.size(1), cache.size(3))
        else:
            cache[slot // size, slot % size] = token


def _reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
) -> None:
    scatter(key, key_cache, slot_mapping, cache_mode == "PA_NZ")
    scatter(value, value_cache, slot_mapping, cache_mode == "PA_NZ")


def _cases() -> Iterator[Case]:
    make = Maker("npu_scatter_pa_kv_cache")
    blocks, size, heads = 5, 4, 2
    slots = torch.tensor([5, 0, 19, -1, 7, 13])
    for dtype in DTYPES:
        last = 32 // dtype.itemsize
        for kind in (torch.int32, torch.int64):
            key, value = (make.normal((6, heads, d), dtype, scale=20.0) for d in (32, 64))
            caches = tuple(make.normal((blocks, size, heads, d), dtype, scale=20.0) for d in (32, 64))
            args = (key, value, *caches, slots.to(kind))
            yield Case(f"Norm, {kind}, {dtype}", args, {"cache_mode": "Norm"}, dtype=dtype)
            caches = tuple(make.normal((blocks, heads * d // last, size, last), dtype, scale=20.0) for d in (32, 64))
            yield Case(f"PA_NZ, {kind}, {dtype}", (key, value, *caches, slots.to(kind)), dtype=dtype)
        whole = make.normal((blocks, 2, size, heads, 32), dtype, scale=20.0)
        args = (key, key.clone(), whole[:, 0], whole[:, 1].clone(), slots)
        yield Case(f"cache with gaps between the blocks, {dtype}", args, {"cache_mode": "Norm"}, dtype=dtype)
        caches = (make.normal((blocks, size, heads, 3), dtype), make.normal((blocks, size, heads, 5), dtype))
        args = (make.normal((6, heads, 3), dtype), make.normal((6, heads, 5), dtype), *caches, slots)
        yield Case(f"odd widths, {dtype}", args, {"cache_mode": "Norm"}, dtype=dtype)
        args = (make.normal((0, heads, 3), dtype), make.normal((0, heads, 5), dtype), *caches, slots[:0].clone())
        yield Case(f"no tokens, {dtype}", args, {"cache_mode": "Norm"}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_scatter_pa_kv_cache, bad")
    key, cache = make.normal((3, 2, 32), torch.bfloat16), make.normal((5, 4, 2, 32), torch.bfloat16)
    norm = {"cache_mode": "Norm"}

    def call(slots: list[int], k: torch.Tensor = key, c: torch.Tensor = cache) -> tuple[torch.Tensor, ...]:
        return k, key.clone(), c, cache.clone(), torch.tensor(slots)

    yield Bad("slot past the cache", call([0, 1, 20]), norm, names="slot_mapping")
    yield Bad("too few slots", call([0, 1]), norm, names="slot_mapping")
    yield Bad("cache of another dtype", call([0, 1, 2], c=cache.half()), norm, names="key_cache")
    yield Bad("cache of another width", call([0, 1, 2], c=cache[..., :16].clone()), norm, names="key_cache")
    yield Bad("row-major cache in the mode PA_NZ", call([0, 1, 2]), names="key_cache")
    yield Bad("unknown mode", call([0, 1, 2]), {"cache_mode": "NZ"}, names="cache_mode")
    yield Bad("repeated slot", call([4, 1, 4]), norm, names="slot_mapping", strict=True)
    turned = make.normal((2, 3, 32), torch.bfloat16).transpose(0, 1)
    yield Bad("key is not contiguous", call([0, 1, 2], k=turned), norm, names="key", strict=True)


CONTRACT = Contract(
    name="npu_scatter_pa_kv_cache",
    schemas=("npu::npu_scatter_pa_kv_cache",),
    formula="key_cache[slot div bs, slot mod bs] ← key[t] for slot = slot_mapping[t]; value alike.",
    dtypes=DTYPES,
    limits=(
        "key [T, heads, Dk], value [T, heads, Dv]; cache_mode Norm: caches [blocks, bs, heads, D]",
        "cache_mode PA_NZ (the default): caches [blocks, heads · D / c, bs, c], c = 32 bytes",
        "negative slots are skipped; slots past the cache are refused; repeated slots are refused in strict mode",
        "key, value and slot_mapping are contiguous",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    source="contracts 5.1: vendor documentation and published kernels",
)
