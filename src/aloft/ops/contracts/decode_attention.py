"""Contract of aloft::decode_attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops import attention
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.attention import BF16, F16, F32, TOLERANCE, paged
from aloft.ops.generate import Maker

_LENGTHS = (300, 1, 0, 129, 16)


def _cases() -> Iterator[Case]:
    make = Maker("decode_attention")
    forms = ((9, 3, 64, 128, BF16), (4, 4, 33, 16, BF16), (8, 1, 1, 5, F32), (8, 2, 256, 64, F16), (2, 1, 512, 32, F32))
    options: tuple[dict[str, Any], ...] = (
        {},
        {"window_left": 0},
        {"soft_cap": 3.0, "window_left": 140},
        {"sinks": True},
    )
    for hq, hkv, d, size, dtype in forms:
        key, value, table = paged(make, _LENGTHS, hkv * d, size, dtype)
        query = make.normal((len(_LENGTHS), hq, d), dtype)
        lengths = torch.tensor(_LENGTHS, dtype=torch.int32)
        caches = tuple(t.unflatten(-1, (hkv, d)) for t in (key, value))
        for option in options:
            if "sinks" in option:
                option = {"sinks": make.normal((hq,), F32, scale=3.0)}
            label = f"{hq}/{hkv}/{d}, blocks of {size}, {', '.join(option) or 'plain'}, {dtype}"
            args = (query, *caches, table, lengths, hkv, d**-0.5)
            yield Case(label, args, option, dtype=dtype, returns=(dtype,))


def _bad() -> Iterator[Bad]:
    make = Maker("decode_attention, bad")
    query, cache, table = make.normal((2, 4, 16)), make.normal((4, 8, 2, 16)), torch.zeros(2, 3, dtype=torch.int32)
    lengths = torch.tensor([10, 24], dtype=torch.int32)

    def call(**change: Any) -> tuple[Any, ...]:
        names = ("query", "key", "value", "table", "lengths", "heads", "scale")
        values = (query, cache, cache, table, lengths, 2, 1.0)
        return tuple(change.get(name, value) for name, value in zip(names, values, strict=True))

    yield Bad("length past the table", call(lengths=lengths + 1), names="kv_lens")
    yield Bad("lengths of int64", call(lengths=lengths.long()), names="kv_lens")
    yield Bad("a length too few", call(lengths=lengths[:1]), names="kv_lens")
    yield Bad("block past the cache", call(table=table + 4), names="block_table")
    yield Bad("heads do not divide", call(heads=3), names="num_kv_heads")
    yield Bad("cache of another dtype", call(key=cache.half()), names="key_cache")
    yield Bad("negative window", call(), {"window_left": -2}, names="window_left")
    yield Bad("negative cap", call(), {"soft_cap": -1.0}, names="soft_cap")
    yield Bad("sinks of one head", call(), {"sinks": torch.zeros(1)}, names="sinks")


CONTRACT = Contract(
    name="decode_attention",
    schemas=("aloft::decode_attention",),
    formula="aloft::paged_attention of one query token a sequence: softmax(cap(scale · q · kᵀ), with sinks) · v.",
    dtypes=(F32, F16, BF16),
    limits=(
        "query [B, Hq, D], caches [nb, bs, Hkv, D], block_table int32 [B, blocks], kv_lens int32 [B], on the device",
        "kv_lens and block_table are read when the operator runs: a captured graph needs no update between replays",
        "the query is the last of its kv_lens keys and sees window_left keys before itself (-1: all); 0 keys give 0",
        "head sizes 1 to 512, any block size; sinks fp32 [Hq] join the denominator",
    ),
    tolerance=TOLERANCE,
    reference=attention.decode,
    cases=_cases,
    bad=_bad,
    optional=True,
    source="aloft: attention of captured decode steps where the runtime can read lengths itself (not on CANN)",
)
