"""Attention as it is defined: a plain reference for every attention operator, in the precision of its arguments.

Called with float64 tensors by contracts and tests. `attend` does the arithmetic; the rest is layouts and visibility.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

UNBOUNDED = 2147483647
"""pre_tokens or next_tokens without a bound."""


def visible(
    q_len: int, kv_len: int, mode: int, pre: int = UNBOUNDED, following: int = UNBOUNDED, banded: bool = False
) -> torch.Tensor:
    """Which keys a sparse mode shows: bool `[q_len, kv_len]`.

    `banded`: mode 0 was called with a mask, so that pre and following tokens count.
    """
    row = torch.arange(q_len)[:, None]
    key = torch.arange(kv_len)[None, :]
    offset = kv_len - q_len
    shown = torch.ones(q_len, kv_len, dtype=torch.bool)
    if mode == 2:
        return key <= row
    if mode == 3:
        return key <= row + offset
    if mode == 4:
        row = row + offset
    if mode == 4 or (mode == 0 and banded):
        if pre < UNBOUNDED:
            shown &= key >= row - pre
        if following < UNBOUNDED:
            shown &= key <= row + following
    return shown


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    shown: torch.Tensor,
    pse: torch.Tensor | None = None,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence. `query` `[Sq, Hq, D]`, `key` `[Skv, Hkv, D]`, `value` `[Skv, Hkv, Dv]`, `shown` bool that
    broadcasts to `[Hq, Sq, Skv]`, `pse` `[Hq, Sq, Skv]`, `sinks` `[Hq]`.

    Returns the output `[Sq, Hq, Dv]` (zero where nothing is seen) and the log-sum-exp `[Sq, Hq]` (-inf there; the
    sinks are not in it).
    """
    group = query.size(1) // max(key.size(1), 1)
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, 1)) * scale
    if pse is not None:
        scores = scores + pse
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~shown, -math.inf)
    lse = torch.logsumexp(scores, -1) if key.size(0) else scores.new_full(scores.shape[:2], -math.inf)
    total = lse if sinks is None else torch.logaddexp(lse, sinks.to(scores.dtype)[:, None])
    seen = torch.isfinite(lse)
    weights = torch.exp(scores - torch.where(seen, total, 0.0)[..., None])
    weights = torch.where(seen[..., None], weights, 0.0)
    out = torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(group, 1))
    return out, lse.T


def read_pages(cache: torch.Tensor, table: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """The first `length` rows `[length, heads, D]` of a sequence whose block ids are `table`.

    `cache` as fused attention takes it: `[nb, bs, heads * D]`, `[nb, heads, bs, D]` or `[nb, heads, D / 16, bs, 16]`.
    """
    if cache.dim() == 5:
        cache = cache.transpose(2, 3).flatten(3)
    if cache.dim() == 4:
        cache = cache.transpose(1, 2).flatten(2)
    size = cache.size(1)
    blocks = table[: (length + size - 1) // size].long()
    return cache[blocks].reshape(len(blocks) * size, heads, cache.size(2) // heads)[:length]


def split_heads(t: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """`t` in any dense layout as `[B, S, N, D]`; packed layouts have B = 1."""
    if layout == "BSH":
        return t.unflatten(-1, (heads, -1)) if t.size(-1) else t.new_zeros(*t.shape[:2], heads, 0)
    if layout == "SBH":
        return t.transpose(0, 1).unflatten(-1, (heads, -1))
    if layout == "BSND":
        return t
    if layout == "BNSD":
        return t.transpose(1, 2)
    if layout == "TND":
        return t[None]
    if layout in ("NTD", "NSD"):
        return t.transpose(0, 1)[None]
    raise ValueError(f"layout {layout!r} is none of BSH, SBH, BSND, BNSD, TND, NTD, NSD")


def join_heads(t: torch.Tensor, layout: str) -> torch.Tensor:
    """The inverse of `split_heads`, and NBSD."""
    if layout == "BSH":
        return t.flatten(2)
    if layout == "SBH":
        return t.transpose(0, 1).flatten(2)
    if layout == "BSND":
        return t
    if layout == "BNSD":
        return t.transpose(1, 2)
    if layout == "NBSD":
        return t.permute(2, 0, 1, 3)
    if layout == "TND":
        return t[0]
    return t[0].transpose(0, 1)


def lengths_of(cumulative: Sequence[int]) -> list[int]:
    """Lengths from running totals without a leading 0."""
    return [end - begin for begin, end in zip([0, *cumulative], cumulative, strict=False)]


def fused_infer(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_fused_infer_attention_score without its quantised forms. Rows of padding are zero in both results; rows that
    see nothing are zero and, in the log-sum-exp, +inf or (decode branch) -3.4e38."""
    kv_heads = num_key_value_heads or num_heads
    layout, _, target = input_layout.partition("_")
    packed = layout in ("TND", "NTD")
    q = split_heads(query, layout, num_heads)
    if query_rope is not None and key_rope is not None:
        q = torch.cat([q, split_heads(query_rope, layout, num_heads)], -1)
    decode = (query.size(-1) == 512) if packed else q.size(1) == 1 or (key.dim() == 5 and q.size(1) <= 16)
    if not packed and q.size(1) == 1 and query_rope is None:
        if atten_mask is not None and atten_mask.shape[-2:] == (2048, 2048) and sparse_mode >= 2:
            atten_mask = None
        sparse_mode = 0 if atten_mask is None else 1
    if not packed and query.size(-1) == 512 and query_rope is not None:
        decode = decode or q.size(1) <= 16 or sparse_mode == 4
    empty = torch.finfo(torch.float32).min if decode else math.inf

    if packed:
        q_lens = lengths_of(actual_seq_lengths or [])
        kv_lens = list(actual_seq_lengths_kv or [])
        kv_lens = kv_lens if block_table is not None else lengths_of(kv_lens)
    else:
        q_lens = list(actual_seq_lengths or [q.size(1)])
        q_lens = q_lens * q.size(0) if len(q_lens) == 1 else q_lens
        kv_lens = list(actual_seq_lengths_kv or [split_heads(key, layout, kv_heads).size(1)])
        kv_lens = kv_lens * q.size(0) if len(kv_lens) == 1 else kv_lens

    d_v = value.size(-1)
    outs: list[torch.Tensor] = []
    lses: list[torch.Tensor] = []
    q_at = kv_at = 0
    for b, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        if block_table is not None:
            k, v = (read_pages(t, block_table[b], kv_len, kv_heads) for t in (key, value))
            if key_rope is not None:
                k = torch.cat([k, read_pages(key_rope, block_table[b], kv_len, kv_heads)], -1)
        else:
            k, v = (split_heads(t, layout, kv_heads) for t in (key, value))
            if key_rope is not None:
                k = torch.cat([k, split_heads(key_rope, layout, kv_heads)], -1)
            k, v = (t[0, kv_at : kv_at + kv_len] if packed else t[b, :kv_len] for t in (k, v))
        rows = q[0, q_at : q_at + q_len] if packed else q[b, :q_len]
        shown = visible(q_len, kv_len, sparse_mode, pre_tokens, next_tokens, banded=atten_mask is not None)
        if atten_mask is not None and sparse_mode < 2:
            mask = atten_mask
            if mask.dim() == 2 and not packed and q.size(1) == 1 and mask.size(0) == q.size(0):
                mask = mask[b][None]
            elif mask.dim() == 4:
                mask = mask[b if mask.size(0) > 1 else 0, 0]
            elif mask.dim() == 3:
                mask = mask[0]
            shown = shown & (mask[:q_len, :kv_len] == 0)
        pse = None
        if pse_shift is not None:
            pse = pse_shift[b if pse_shift.size(0) > 1 else 0, :, :q_len, :kv_len]
        out, lse = attend(rows, k, v, scale, shown, pse, sinks=learnable_sink)
        lse = torch.where(torch.isneginf(lse), empty, lse)
        d_v = out.size(-1)
        if not packed:
            out = torch.cat([out, out.new_zeros(q.size(1) - q_len, *out.shape[1:])])
            lse = torch.cat([lse, lse.new_zeros(q.size(1) - q_len, num_heads)])
        outs.append(out)
        lses.append(lse)
        q_at += q_len
        kv_at += kv_len
    if packed:
        joined = torch.cat(outs)[None] if outs else q.new_zeros(1, 0, num_heads, d_v)
        lse_all = torch.cat(lses)[..., None] if lses else q.new_zeros(0, num_heads, 1)
    else:
        joined = torch.stack(outs)
        lse_all = torch.stack(lses).transpose(1, 2)[..., None]
    return join_heads(joined, target or layout), lse_all if softmax_lse_flag else lse_all.new_zeros(0)


def paged(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: Sequence[int],
    kv_lens: Sequence[int],
    num_kv_heads: int,
    scale: float,
    window_left: int = -1,
    soft_cap: float = 0.0,
    causal: bool = True,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aloft::paged_attention: caches `[nb, bs, heads * D]` or `[nb, bs, heads, D]`, `window_left` keys before the row's
    own visible (-1: all), log-sum-exp `[T, Hq]` with -inf for rows that see nothing."""
    key_cache, value_cache = (t.flatten(2) for t in (key_cache, value_cache))
    outs = [query.new_zeros(0, query.size(1), value_cache.size(2) // num_kv_heads)]
    lses = [query.new_zeros(0, query.size(1))]
    begin = 0
    for table, end, kv_len in zip(block_table, cu_query_lens, kv_lens, strict=True):
        q_len = end - begin
        key, value = (read_pages(t, table, kv_len, num_kv_heads) for t in (key_cache, value_cache))
        before = UNBOUNDED if window_left < 0 else window_left
        shown = visible(q_len, kv_len, 4, before, 0 if causal else UNBOUNDED)
        out, lse = attend(query[begin:end], key, value, scale, shown, soft_cap=soft_cap, sinks=sinks)
        outs.append(out)
        lses.append(lse)
        begin = end
    return torch.cat(outs), torch.cat(lses) if return_lse else query.new_zeros(0)


def decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    num_kv_heads: int,
    scale: float,
    window_left: int = -1,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """aloft::decode_attention: one query token a sequence, lengths in a tensor."""
    totals = list(range(1, query.size(0) + 1))
    return paged(
        query,
        key_cache,
        value_cache,
        block_table,
        totals,
        kv_lens.tolist(),
        num_kv_heads,
        scale,
        window_left,
        soft_cap,
        sinks=sinks,
    )[0]
