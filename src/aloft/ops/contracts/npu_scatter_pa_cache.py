"""Contract of npu_scatter_pa_cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.contracts.npu_scatter_pa_kv_cache import DTYPES, scatter
from aloft.ops.generate import Maker


def _reference(key: torch.Tensor, slot_mapping: torch.Tensor, *, key_cache: torch.Tensor) -> torch.Tensor:
    scatter(key, key_cache, slot_mapping, False)
    return key_cache


def _cases() -> Iterator[Case]:
    make = Maker("npu_scatter_pa_cache")
    slots = torch.tensor([5, 0, 19, -1, 7], dtype=torch.int32)
    for dtype in DTYPES:
        for width in (32, 3):
            key, cache = make.normal((5, 1, width), dtype), make.normal((5, 4, 1, width), dtype)
            yield Case(f"width {width}, {dtype}", (key, slots), {"key_cache": cache}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_scatter_pa_cache, bad")
    key, cache = make.normal((2, 1, 32), torch.bfloat16), make.normal((5, 4, 1, 32), torch.bfloat16)
    yield Bad("slot past the cache", (key, torch.tensor([0, 20])), {"key_cache": cache}, names="slot_mapping")


CONTRACT = Contract(
    name="npu_scatter_pa_cache",
    schemas=("npu::npu_scatter_pa_cache.value",),
    formula="key_cache[slot div bs, slot mod bs] ← key[t] for slot = slot_mapping[t].",
    dtypes=DTYPES,
    limits=("as npu_scatter_pa_kv_cache with cache_mode Norm, one cache",),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    source="contracts 5.1: schema",
)
