"""Contract of aloft::fp8_attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families import fp8_cache
from aloft.ops.families.attention import BF16, F16, F32, LENGTHS, TOLERANCE, paged, totals
from aloft.ops.generate import Maker

_FORMS = (
    *((9, 3, 64, 128, BF16), (4, 4, 33, 16, BF16), (8, 1, 128, 32, BF16), (8, 1, 1, 5, F32)),
    *((9, 3, 64, 64, F32), (8, 2, 256, 64, F16), (2, 1, 512, 32, BF16)),
)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"window": 1},
    {"window": 100},
    {"window": 4096},
    {"window_left": 140, "soft_cap": 3.0},
    {"window": 70, "window_left": 90, "sinks": True},
)


def recent(make: Maker, kv_lens: tuple[int, ...], heads: int, d: int, size: int, dtype: torch.dtype) -> dict[str, Any]:
    """A second cache in full width; positions that were never written are zero, as in a server's."""
    key, value, table = paged(make, kv_lens, heads * d, size, dtype)
    key, value = (t.nan_to_num().unflatten(-1, (heads, d)) for t in (key, value))
    return {"recent_key": key, "recent_value": value, "recent_table": table}


def _cases() -> Iterator[Case]:
    make = Maker("fp8_attention")
    q_lens, kv_lens = zip(*LENGTHS, strict=True)
    for hq, hkv, d, size, dtype in _FORMS:
        cache, table = fp8_cache.cache(make, kv_lens, hkv, d, size)
        query = make.normal((sum(q_lens), hq, d), dtype)
        for option in _OPTIONS[:: 2 if d > 128 or d == 1 else 1]:
            option = dict(option)
            if "sinks" in option:
                option["sinks"] = make.normal((hq,), F32, scale=3.0)
            if option.get("window"):
                option |= recent(make, kv_lens, hkv, d, max(1, size // 2), dtype)
            label = f"{hq}/{hkv}/{d}, blocks of {size}, {_said(option)}, {dtype}"
            args = (query, *cache, table, totals(q_lens), list(kv_lens), hkv, d**-0.5)
            yield Case(label, args, option, dtype=dtype)
        decode = list(range(1, len(kv_lens) + 1))
        lengths = torch.tensor(kv_lens, dtype=torch.int32)
        for window in (0, 65):
            option = {"device_lens": lengths, "window": window}
            if window:
                option |= recent(make, kv_lens, hkv, d, 16, dtype)
            args = (make.normal((len(kv_lens), hq, d), dtype), *cache, table, decode, [], hkv, d**-0.5)
            yield Case(f"{hq}/{hkv}/{d}, blocks of {size}, decode, window {window}, {dtype}", args, option, dtype=dtype)


def _said(option: dict[str, Any]) -> str:
    said = [name if name == "sinks" else f"{name} {value}" for name, value in option.items() if "recent" not in name]
    return ", ".join(said) or "plain"


def _bad() -> Iterator[Bad]:
    make = Maker("fp8_attention, bad")
    cache, table = fp8_cache.cache(make, (10, 24), 2, 16, 8)
    near = recent(make, (10, 24), 2, 16, 8, F32)

    def call(**change: Any) -> tuple[Any, ...]:
        names = ("query", "key_codes", "value_codes", "key_exponents", "value_exponents", "table", "cu", "kv", "heads")
        values = (make.normal((6, 4, 16)), *cache, table, [2, 6], [10, 24], 2)
        return (*(change.get(name, value) for name, value in zip(names, values, strict=True)), 1.0)

    yield Bad("query lengths end elsewhere", call(cu=[2, 5]), names="cu_query_lens")
    yield Bad("query lengths decrease", call(cu=[7, 6]), names="cu_query_lens")
    yield Bad("a key length too few", call(kv=[10]), names="kv_lens")
    yield Bad("key length past the table", call(kv=[10, 25]), names="kv_lens")
    yield Bad("heads do not divide", call(heads=3), names="num_kv_heads")
    yield Bad("codes of int8", call(key_codes=cache[0].view(torch.int8)), names="key_codes")
    yield Bad("exponents of uint8", call(value_exponents=cache[3].view(torch.uint8)), names="value_exponents")
    yield Bad("table of int64", call(table=table.long()), names="block_table")
    yield Bad("block past the cache", call(table=table + 50), names="block_table")
    yield Bad("negative window", call(), {"window": -1}, names="window")
    yield Bad("window without its cache", call(), {"window": 4}, names="recent_key")
    yield Bad("a cache without window", call(), near, names="window")
    other = near | {"recent_key": near["recent_key"].half()}
    yield Bad("recent keys of another dtype", call(), {"window": 4} | other, names="recent_key")
    other = near | {"recent_table": near["recent_table"] + 50}
    yield Bad("recent block past the cache", call(), {"window": 4} | other, names="recent_table")
    lengths = torch.tensor([10, 25], dtype=torch.int32)
    yield Bad("length on the device past the table", call(kv=[]), {"device_lens": lengths}, names="device_lens")
    yield Bad("lengths of int64", call(kv=[]), {"device_lens": lengths.long()}, names="device_lens")
    yield Bad("negative cap", call(), {"soft_cap": -1.0}, names="soft_cap")
    yield Bad("sinks of one head", call(), {"sinks": torch.zeros(1)}, names="sinks")


CONTRACT = Contract(
    name="fp8_attention",
    schemas=("aloft::fp8_attention",),
    formula="aloft::paged_attention, causal, on key = e4m3 · 2^exponent; row i reads keys > i - window from recent_key",
    dtypes=(F32, F16, BF16),
    limits=(
        "codes uint8 [nb, bs, Hkv, D] and exponents int8 [nb, bs] as aloft::compress_kv writes; head sizes 1 to 512",
        "with window > 0: recent_key and recent_value [nb, bs, Hkv, D] in query's dtype, blocks by recent_table; in "
        "front of the window finite but otherwise any; the two caches may have different block sizes",
        "cu_query_lens cumulative and ending at T; kv_lens, or device_lens int32 [B] which is read when it runs",
        "window_left, soft_cap and sinks as in aloft::paged_attention; nothing of the cache is copied out",
    ),
    tolerance=TOLERANCE,
    reference=fp8_cache.attention,
    cases=_cases,
    bad=_bad,
    optional=True,
    source="aloft: attention on a KV cache compressed to 8-bit floats",
)
