"""aloft::paged_attention from documented operators, for runtimes that lack the native kernel (CANN).

The virtual NPU registers the operator from libaloft_torch; there `ensure()` does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

SCHEMA = (
    "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, int[] cu_query_lens, "
    "int[] kv_lens, int num_kv_heads, float scale, int window_left=-1, float soft_cap=0., bool causal=True, "
    "Tensor? sinks=None, bool return_lse=False) -> (Tensor, Tensor)"
)
OUT_SCHEMA = SCHEMA.replace("paged_attention(", "paged_attention.out(").replace(
    "return_lse=False) -> (Tensor, Tensor)", "return_lse=False, *, Tensor(a!) out) -> (Tensor(a!), Tensor)"
)
_library: torch.library.Library | None = None


def composite(
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
    """Attention of packed queries over a paged cache, sequence by sequence.

    Args:
        query: `[T, Hq, D]`, float32, float16 or bfloat16.
        key_cache, value_cache: `[nb, bs, Hkv * D]` or `[nb, bs, Hkv, D]`, dtype of query.
        block_table: int32 `[B, blocks]`.
        cu_query_lens: running totals of the query tokens, the last one T.
        kv_lens: keys of each sequence.
        window_left: keys visible before a row's own; -1 for all.
        soft_cap: scores become `cap * tanh(score / cap)`; 0 for off.
        sinks: float32 `[Hq]`, one more logit a head that has no value.

    Returns:
        The output `[T, Hq, Dv]` and, with `return_lse`, the log-sum-exp `[T, Hq]` in float32 (sinks excluded, -inf for
        rows that see nothing), else an empty tensor.
    """
    heads = query.size(1)
    group = heads // num_kv_heads
    keys, values = (t.flatten(2) if t.dim() == 4 else t for t in (key_cache, value_cache))
    block = keys.size(1)
    outs, lses = [], []
    begin = 0
    for b, (end, kv_len) in enumerate(zip(cu_query_lens, kv_lens, strict=True)):
        q_len = end - begin
        if q_len == 0:
            continue
        ids = block_table[b, : max(1, -(-kv_len // block))].long()
        q = query[begin:end].float().transpose(0, 1).unflatten(0, (num_kv_heads, group))  # [Hkv, G, S, D]
        k, v = (
            t.index_select(0, ids).flatten(0, 1)[:kv_len].unflatten(1, (num_kv_heads, -1)).permute(1, 0, 2).float()
            for t in (keys, values)
        )
        scores = torch.matmul(q * scale, k.transpose(1, 2)[:, None])
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        row = torch.arange(q_len, device=query.device)[:, None] + (kv_len - q_len)
        key = torch.arange(kv_len, device=query.device)[None]
        hidden = torch.zeros(q_len, kv_len, dtype=torch.bool, device=query.device)
        if causal:
            hidden = hidden | (key > row)
        if window_left >= 0:
            hidden = hidden | (key < row - window_left)
        # A first column for the sinks: -inf where there are none, so that no row is empty of columns.
        first = scores.new_full((num_kv_heads, group, q_len, 1), -math.inf)
        if sinks is not None:
            first = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, q_len, 1)
        scores = scores.masked_fill(hidden, -math.inf)
        top = torch.cat([scores, first], -1).amax(-1, keepdim=True)
        top = torch.where(torch.isneginf(top), 0.0, top)
        weights = torch.exp(scores - top)
        seen = weights.sum(-1, keepdim=True)
        total = seen + torch.exp(first - top)
        weights = weights / torch.where(total == 0, 1.0, total)
        out = torch.matmul(weights, v[:, None])
        outs.append(out.flatten(0, 1).transpose(0, 1).to(query.dtype))
        lses.append((top + torch.log(seen)).flatten(0, 1)[..., 0].transpose(0, 1))
        begin = end
    d_v = values.size(2) // num_kv_heads
    result = torch.cat(outs) if outs else query.new_empty(0, heads, d_v)
    empty = torch.empty(0, dtype=torch.float32, device=query.device)
    if not return_lse:
        return result, empty
    return result, torch.cat(lses) if lses else empty.view(0, heads)


def _out(*args: object, out: torch.Tensor, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
    result, lse = composite(*args, **kwargs)  # type: ignore[arg-type]
    return out.copy_(result), lse


def native() -> bool:
    """Whether the runtime has aloft::paged_attention as one operator."""
    return _library is None and hasattr(torch.ops.aloft, "paged_attention")


def decode_native() -> bool:
    """Whether the runtime has aloft::decode_attention, which reads its lengths from the device when it runs."""
    return hasattr(torch.ops.aloft, "decode_attention")


def ensure() -> None:
    """Makes torch.ops.aloft.paged_attention exist. Idempotent; call it before the first use."""
    global _library
    if _library is not None or hasattr(torch.ops.aloft, "paged_attention"):
        return
    _library = torch.library.Library("aloft", "FRAGMENT")
    _library.define(SCHEMA)
    _library.define(OUT_SCHEMA)
    _library.impl("paged_attention", composite, "CompositeExplicitAutograd")
    _library.impl("paged_attention.out", _out, "CompositeExplicitAutograd")
