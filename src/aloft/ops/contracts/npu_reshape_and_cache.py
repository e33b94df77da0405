"""Contract of _npu_reshape_and_cache and its one-cache sibling, from ATB."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch_npu  # noqa: F401

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.contracts.npu_scatter_pa_kv_cache import scatter
from aloft.ops.generate import Maker

DTYPES = (torch.float16, torch.bfloat16, torch.int8)
_ONE = "atb::_npu_reshape_and_cache_siso"


def _reference(*operands: torch.Tensor) -> None:
    *pairs, slots = operands
    half = len(pairs) // 2
    for tokens, cache in zip(pairs[:half], pairs[half:], strict=True):
        scatter(tokens, cache, slots, False)


def _cases() -> Iterator[Case]:
    make = Maker("npu_reshape_and_cache")
    slots = torch.tensor([5, 0, 47, -1, 7], dtype=torch.int32)
    for dtype in DTYPES:
        for width in (64, 24):
            key, value = make.normal((5, 2, width), dtype, scale=20.0), make.normal((5, 2, width), dtype, scale=20.0)
            caches = tuple(make.normal((3, 16, 2, width), dtype, scale=20.0) for _ in range(2))
            yield Case(f"width {width}, {dtype}", (key, value, *caches, slots), dtype=dtype)
            one = (key.clone(), caches[0].clone(), slots.clone())
            yield Case(f"one cache, width {width}, {dtype}", one, dtype=dtype, form=_ONE)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_reshape_and_cache, bad")
    key, cache = make.normal((2, 2, 32), torch.bfloat16), make.normal((3, 16, 2, 32), torch.bfloat16)
    slots = torch.tensor([0, 48], dtype=torch.int32)
    yield Bad("slot past the cache", (key, key.clone(), cache, cache.clone(), slots), names="slot_mapping")
    yield Bad("slot past the one cache", (key, cache, slots), names="slot_mapping", form=_ONE)


CONTRACT = Contract(
    name="npu_reshape_and_cache",
    schemas=("atb::_npu_reshape_and_cache", _ONE),
    formula="key_cache[slot div bs, slot mod bs] ← key[t] for slot = slot_indices[t]; value alike.",
    dtypes=DTYPES,
    limits=(
        "key and value [T, heads, D], caches [blocks, bs, heads, D], or FRACTAL_NZ [blocks, heads · D / 16, bs, 16]",
        "slot_indices is int32; negative slots are skipped, slots past the cache are refused",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    source="contracts 5.2: vendor sources",
)
