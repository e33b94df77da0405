"""Contract of aloft::compress_kv."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.fp8_cache import compress_kv
from aloft.ops.generate import Maker

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SLOTS = torch.tensor([5, 0, 19, -1, 7, 13])


def _caches(make: Maker, blocks: int, size: int, heads: int, d: int, d_v: int) -> tuple[torch.Tensor, ...]:
    return (
        *(make.integers((blocks, size, heads, width), 0, 256, torch.uint8) for width in (d, d_v)),
        *(make.integers((blocks, size), -50, 50, torch.int8) for _ in range(2)),
    )


def _hard(make: Maker, dtype: torch.dtype) -> torch.Tensor:
    """Tokens at the edges: zeros, ties of every size, the largest numbers beside a power, tiny, huge, NaN."""
    x = make.normal((6, 2, 33), torch.float32)
    x[0] = 0
    x[1, 0, :32] = torch.arange(32) / 16 + 2.0**-9 * torch.arange(32)  # ties between codes
    x[1, 1, 0] = 448
    x[2, 0, :4] = torch.tensor([1.75, 1.7578125, -1.75, 2.0**-30])
    x[3] *= 2.0**-14 if dtype == torch.float16 else 2.0**-120
    x[4] *= 30000.0 if dtype == torch.float16 else 1e37
    x[5, 1, 7] = math.nan if dtype == torch.bfloat16 else -math.inf
    return x.to(dtype)


def _cases() -> Iterator[Case]:
    make = Maker("compress_kv")
    for dtype in _DTYPES:
        for heads, d, d_v, size in ((2, 64, 64, 4), (3, 33, 5, 4), (1, 1, 130, 20)):
            key, value = (make.normal((6, heads, width), dtype, scale=3.0) for width in (d, d_v))
            caches = _caches(make, 20 // size, size, heads, d, d_v)
            yield Case(f"{heads} x {d} and {d_v}, {dtype}", (key, value, *caches, _SLOTS), dtype=dtype)
            rows = torch.tensor([4, 0, 0, 9, 5, 2], dtype=torch.int32)
            key, value = (make.normal((10, heads, width), dtype, scale=0.01) for width in (d, d_v))
            args = (key, value, *caches, _SLOTS.int(), rows)
            yield Case(f"{heads} x {d} and {d_v}, from chosen rows, {dtype}", args, dtype=dtype)
        hard = _hard(make, dtype)
        slots = torch.tensor([4, 1, 2, 3, 0, 19])
        args = (hard, hard.flip(0), *_caches(make, 5, 4, 2, 33, 33), slots)
        yield Case(f"edges, {dtype}", args, dtype=dtype)
        whole = make.normal((6, 6, 40), dtype)
        args = (whole[:, 2:4], whole[:, 4:], *_caches(make, 5, 4, 2, 40, 40), _SLOTS)
        yield Case(f"parts of one row, {dtype}", args, dtype=dtype)
        many = make.normal((700, 2, 64), dtype)
        args = (many, many * 2, *_caches(make, 50, 16, 2, 64, 64), make.permutation(800)[:700].contiguous())
        yield Case(f"many tokens, {dtype}", args, dtype=dtype)
        args = (hard[:0], hard[:0], *_caches(make, 5, 4, 2, 33, 33), slots[:0])
        yield Case(f"no tokens, {dtype}", args, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("compress_kv, bad")
    key = make.normal((3, 2, 32), torch.bfloat16)
    codes = make.integers((5, 4, 2, 32), 0, 256, torch.uint8)
    exponents = make.integers((5, 4), -9, 9, torch.int8)

    def call(**change: Any) -> tuple[Any, ...]:
        names = ("key", "value", "key_codes", "value_codes", "key_exponents", "value_exponents", "slots")
        values = (key, key, codes, codes.clone(), exponents, exponents.clone(), torch.arange(3))
        return tuple(change.get(name, value) for name, value in zip(names, values, strict=True))

    yield Bad("slot past the cache", call(slots=torch.tensor([0, 1, 20])), names="slot_mapping")
    yield Bad("too few slots", call(slots=torch.arange(2)), names="slot_mapping")
    yield Bad("slots of int16", call(slots=torch.arange(3).short()), names="slot_mapping")
    yield Bad("a row too many", call(), {"source": torch.tensor([0, 1, 3])}, names="row 3")
    yield Bad("two rows for three slots", call(), {"source": torch.tensor([0, 1])}, names="source")
    yield Bad("keys of integers", call(key=key.int()), names="key")
    yield Bad("codes of another width", call(key_codes=codes[..., :16].clone()), names="head_dim")
    yield Bad("codes of int8", call(value_codes=codes.view(torch.int8)), names="value_codes")
    yield Bad("exponents of uint8", call(key_exponents=exponents.view(torch.uint8)), names="key_exponents")
    yield Bad("a block of exponents too few", call(value_exponents=exponents[1:]), names="value_exponents")


CONTRACT = Contract(
    name="compress_kv",
    schemas=("aloft::compress_kv",),
    formula="e = min(e ≥ -100: max |x| ≤ 448 · 2^e over the token's heads); codes ← e4m3(x / 2^e), exponents ← e",
    dtypes=_DTYPES,
    limits=(
        "key [R, H, D], value [R, H, Dv]; codes uint8 [nb, bs, H, D] (bytes of float8_e4m3fn), exponents int8 [nb, bs]",
        "token t is row source[t] (or t) and goes to slot_mapping[t]; negative slots are skipped",
        "round half to even, nothing saturates; a token with a value that is not finite gets the exponent -128",
        "a token's bytes depend on its own values only",
    ),
    tolerance={},
    reference=compress_kv,
    cases=_cases,
    bad=_bad,
    widen=False,
    optional=True,
    source="aloft: KV cache compressed to 8-bit floats; OCP 8-bit floating point specification (E4M3)",
)
