"""References and operands of the operators of the KV cache of 8-bit floats, in float64 and by torch's own float8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aloft.ops.attention import UNBOUNDED, attend, visible
from aloft.ops.families.attention import paged
from aloft.ops.generate import Maker

Cache = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 and exponents int8 ``[T]`` of ``[T, H, D]``."""
    wide = x.double()
    finite = wide.isfinite().all(-1).all(-1)
    wide = torch.where(finite[:, None, None], wide, 0.0)
    largest = wide.abs().flatten(1).amax(1) if wide.numel() else wide.new_zeros(len(wide))
    fraction, power = torch.frexp(largest / 448)
    exponent = torch.where(fraction > 0.5, power, power - 1)
    exponent = torch.where(largest > 0, exponent, -100).clamp_min(-100)
    codes = (wide * torch.exp2(-exponent.double())[:, None, None]).float().to(torch.float8_e4m3fn).view(torch.uint8)
    return codes, torch.where(finite, exponent, -128).to(torch.int8)


def decode(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """float64 of codes ``[..., H, D]`` with exponents ``[...]``."""
    scale = torch.where(exponents == -128, torch.nan, torch.exp2(exponents.double()))
    return codes.view(torch.float8_e4m3fn).double() * scale[..., None, None]


def compress_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_codes: torch.Tensor,
    value_codes: torch.Tensor,
    key_exponents: torch.Tensor,
    value_exponents: torch.Tensor,
    slot_mapping: torch.Tensor,
    source: torch.Tensor | None = None,
) -> None:
    """aloft::compress_kv."""
    size = key_codes.size(1)
    for x, codes, exponents in ((key, key_codes, key_exponents), (value, value_codes, value_exponents)):
        made, exponent = encode(x)
        for token, slot in enumerate(slot_mapping.tolist()):
            row = token if source is None else int(source[token])
            if slot >= 0:
                codes[slot // size, slot % size] = made[row]
                exponents[slot // size, slot % size] = exponent[row]


def attention(
    query: torch.Tensor,
    key_codes: torch.Tensor,
    value_codes: torch.Tensor,
    key_exponents: torch.Tensor,
    value_exponents: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: Sequence[int],
    kv_lens: Sequence[int],
    num_kv_heads: int,
    scale: float,
    window: int = 0,
    recent_key: torch.Tensor | None = None,
    recent_value: torch.Tensor | None = None,
    recent_table: torch.Tensor | None = None,
    window_left: int = -1,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    device_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """aloft::fp8_attention: every key twice, as it was compressed and as it was; a row sees one of the two."""
    lengths = kv_lens if device_lens is None else device_lens.tolist()
    outs = [query.new_zeros(0, query.size(1), value_codes.size(3))]
    begin = 0
    for b, (end, length) in enumerate(zip(cu_query_lens, lengths, strict=True)):
        q_len = end - begin
        both = []
        for codes, exponents, recent in (
            (key_codes, key_exponents, recent_key),
            (value_codes, value_exponents, recent_value),
        ):
            old = decode(_tokens(codes, block_table[b], length), _tokens(exponents, block_table[b], length))
            new = old if recent is None or recent_table is None else _tokens(recent, recent_table[b], length)
            seen = min(window + q_len - 1, length)  # what no row reads may be anything
            both.append(torch.cat([old, torch.cat([old[: length - seen], new[length - seen :]]).to(old.dtype)]))
        shown = visible(q_len, length, 4, UNBOUNDED if window_left < 0 else window_left, 0)
        near = torch.arange(length)[None] > torch.arange(q_len)[:, None] + (length - q_len - window)
        pair = torch.cat([shown & ~near, shown & near], -1)
        outs.append(attend(query[begin:end], both[0], both[1], scale, pair, soft_cap=soft_cap, sinks=sinks)[0])
        begin = end
    return torch.cat(outs)


def _tokens(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    size = cache.size(1)
    return cache[table[: (length + size - 1) // size].long()].flatten(0, 1)[:length]


def cache(make: Maker, kv_lens: Sequence[int], heads: int, d: int, size: int) -> tuple[Cache, torch.Tensor]:
    """A compressed cache ``[nb, size, heads, d]`` and its block table. Tokens differ in magnitude; what no sequence
    owns reads as NaN."""
    key, value, table = paged(make, kv_lens, heads * d, size, torch.float32)
    parts = []
    for x in (key, value):
        smaller = torch.exp2(-2 * make.normal((x.size(0) * size, 1, 1)).abs())
        tokens = x.flatten(0, 1).unflatten(-1, (heads, d)) * smaller
        codes, exponents = encode(tokens)
        parts.append((codes.view(-1, size, heads, d), exponents.view(-1, size)))
    return (parts[0][0], parts[1][0], parts[0][1], parts[1][1]), table
