"""Contract of aloft::paged_attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops import attention
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.attention import BF16, F16, F32, LENGTHS, TOLERANCE, paged, totals
from aloft.ops.generate import Maker


def _cases() -> Iterator[Case]:
    make = Maker("paged_attention")
    q_lens, kv_lens = zip(*LENGTHS, strict=True)
    forms = ((9, 3, 64, 128, F32), (4, 4, 33, 16, BF16), (8, 1, 1, 5, F32), (8, 2, 256, 64, F16), (2, 1, 512, 32, F32))
    options: tuple[dict[str, Any], ...] = (
        {},
        {"window_left": 5, "causal": False},
        {"window_left": 0},
        {"soft_cap": 3.0, "window_left": 140},
        {"sinks": True},
    )
    for hq, hkv, d, size, dtype in forms:
        key, value, table = paged(make, kv_lens, hkv * d, size, dtype)
        query = make.normal((sum(q_lens), hq, d), dtype)
        for option in options:
            if "sinks" in option:
                option = {"sinks": make.normal((hq,), F32, scale=3.0)}
            cache = (t.unflatten(-1, (hkv, d)) if option else t for t in (key, value))
            args = (query, *cache, table, totals(q_lens), list(kv_lens), hkv, d**-0.5)
            label = f"{hq}/{hkv}/{d}, blocks of {size}, {', '.join(option) or 'causal'}, {dtype}"
            yield Case(label, args, {**option, "return_lse": True}, dtype=dtype, returns=(dtype, F32))


def _bad() -> Iterator[Bad]:
    make = Maker("paged_attention, bad")
    query, cache, table = make.normal((6, 4, 16)), make.normal((4, 8, 2, 16)), torch.zeros(2, 3, dtype=torch.int32)

    def call(**change: Any) -> tuple[Any, ...]:
        names = ("query", "key", "value", "table", "cu", "kv", "heads", "scale")
        values = (query, cache, cache, table, [2, 6], [10, 24], 2, 1.0)
        return tuple(change.get(name, value) for name, value in zip(names, values, strict=True))

    yield Bad("query lengths end elsewhere", call(cu=[2, 5]), names="cu_query_lens")
    yield Bad("query lengths decrease", call(cu=[7, 6]), names="cu_query_lens")
    yield Bad("a key length too few", call(kv=[10]), names="kv_lens")
    yield Bad("key length past the table", call(kv=[10, 25]), names="kv_lens")
    yield Bad("heads do not divide", call(heads=3), names="num_kv_heads")
    yield Bad("cache of another dtype", call(key=cache.half()), names="key_cache")
    yield Bad("table of int64", call(table=table.long()), names="block_table")
    yield Bad("negative window", call(), {"window_left": -2}, names="window_left")
    yield Bad("negative cap", call(), {"soft_cap": -1.0}, names="soft_cap")
    yield Bad("sinks of one head", call(), {"sinks": torch.zeros(1)}, names="sinks")


CONTRACT = Contract(
    name="paged_attention",
    schemas=("aloft::paged_attention",),
    formula="softmax(cap(scale · q · kᵀ), masked, with sinks) · v, paged; cap(s) = soft_cap · tanh(s / soft_cap).",
    dtypes=(F32, F16, BF16),
    limits=(
        "head sizes 1 to 512, any block size; caches [nb, bs, Hkv·D] or [nb, bs, Hkv, D], last dimension contiguous",
        "cu_query_lens cumulative and ending at T, kv_lens and block_table (int32) one entry a sequence",
        "row i of a sequence sees keys up to i + kv - q (causal) and window_left keys before that (-1: all)",
        "sinks fp32 [Hq] join the denominator; the log-sum-exp [T, Hq] excludes them and is -inf where nothing is seen",
    ),
    tolerance=TOLERANCE,
    reference=attention.paged,
    cases=_cases,
    bad=_bad,
    source="aloft: what the fused operators do not take (float32, soft cap, odd head sizes)",
)
