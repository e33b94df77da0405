"""The KV cache of 8-bit floats: ``aloft::compress_kv`` writes it, ``aloft::fp8_attention`` reads it.

A token's keys (or values) are e4m3 numbers times one power of two, the smallest that keeps the largest of them, over
all heads, within e4m3's 448. They depend on nothing but the token. The virtual NPU has both operators; elsewhere
``ensure()`` registers the composites below. A 910B has no fp8 arithmetic: there they are integer, index and matrix
operators, which convert every key they read. (950-class parts quantize to e4m3 with ``npu_dynamic_quant`` and read
it in fused attention, with a float32 scale a token; nothing here was tried on either.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

SCHEMAS = (
    "compress_kv(Tensor key, Tensor value, Tensor(a!) key_codes, Tensor(b!) value_codes, Tensor(c!) key_exponents, "
    "Tensor(d!) value_exponents, Tensor slot_mapping, Tensor? source=None) -> ()",
    "fp8_attention(Tensor query, Tensor key_codes, Tensor value_codes, Tensor key_exponents, Tensor value_exponents, "
    "Tensor block_table, int[] cu_query_lens, int[] kv_lens, int num_kv_heads, float scale, int window=0, Tensor? "
    "recent_key=None, Tensor? recent_value=None, Tensor? recent_table=None, int window_left=-1, float soft_cap=0., "
    "Tensor? sinks=None, Tensor? device_lens=None) -> Tensor",
)
_OUT = (
    SCHEMAS[1]
    .replace("fp8_attention(", "fp8_attention.out(")
    .replace("device_lens=None) -> Tensor", "device_lens=None, *, Tensor(a!) out) -> Tensor(a!)")
)
LARGEST, LOWEST, NOT_FINITE = 448.0, -100, -128
_BIAS = 127
_library: torch.library.Library | None = None


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
    """Writes tokens into the cache.

    Args:
        key, value: ``[R, H, D]``, float32, float16 or bfloat16.
        key_codes, value_codes: uint8 ``[nb, bs, H, D]``, the bytes of float8_e4m3fn; written.
        key_exponents, value_exponents: int8 ``[nb, bs]``; written. -128 says that a token had a value that was not
            finite; such a token reads as NaN.
        slot_mapping: int32 or int64 ``[T]``, ``block * bs + offset``; a token with a negative slot is not written.
        source: int32 or int64 ``[T]``, the row of each token; None for its own number.
    """
    slots = slot_mapping.long()
    kept = slots >= 0
    rows = torch.arange(len(slots), device=key.device) if source is None else source.long()
    rows, slots = rows[kept], slots[kept]
    for x, codes, exponents in ((key, key_codes, key_exponents), (value, value_codes, value_exponents)):
        made, exponent = _encoded(x.index_select(0, rows).float())
        size = codes.shape[1]
        codes.index_put_((slots // size, slots % size), made)
        exponents.index_put_((slots // size, slots % size), exponent)


def _encoded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and exponents of float32 ``[T, H, D]``, in integer arithmetic on the bits."""
    if not x.numel():
        return x.to(torch.uint8), x.new_full(x.shape[:1], LOWEST, dtype=torch.int8)
    largest = x.abs().amax((1, 2)).view(torch.int32)
    infinite = (x.view(torch.int32) & 0x7FFFFFFF).amax((1, 2)) >= 0x7F800000
    exponent = (((largest + 0x1FFFFF) >> 23) - _BIAS - 8).clamp_min(LOWEST)
    exponent = torch.where(infinite, 0, exponent)
    scaled = x * ((_BIAS - exponent) << 23).view(torch.float32)[:, None, None]
    bits = scaled.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    small = (magnitude.view(torch.float32) + 16384.0).view(torch.int32) - 0x46800000  # rounds to multiples of 2^-9
    code = torch.where(magnitude < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)
    code = torch.where(infinite[:, None, None], 0, code)
    return code.to(torch.uint8), torch.where(infinite, NOT_FINITE, exponent).to(torch.int8)


@functools.lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 ``[256]``: the numbers of the codes, and the powers of the exponents from -128."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    powers = torch.exp2(torch.arange(-128, 128).double()).float()
    powers[0] = math.nan
    return numbers.to(device), powers.to(device)


def decoded(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """float32 of codes ``[..., H, D]`` with exponents ``[...]``."""
    numbers, powers = _tables(codes.device)
    scale = powers.index_select(0, exponents.flatten().long() + 128).view(exponents.shape)
    return numbers.index_select(0, codes.flatten().long()).view(codes.shape) * scale[..., None, None]


def fp8_attention(
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
    """Causal attention of packed queries over the cache, its newest tokens in full width.

    Args:
        query: ``[T, Hq, D]``, float32, float16 or bfloat16.
        key_codes ... value_exponents: as ``compress_kv`` writes them.
        block_table: int32 ``[B, blocks]``.
        cu_query_lens: running totals of the query tokens, the last one T.
        kv_lens: keys of each sequence; not used with ``device_lens``.
        window: a query reads its own and the ``window - 1`` tokens before it from ``recent_key`` and
            ``recent_value`` (``[nb, bs, Hkv, D]``, dtype of query, blocks by ``recent_table``) and older ones from
            the codes. 0: all from the codes.
        window_left: keys visible before a row's own; -1 for all.
        soft_cap, sinks: as ``aloft::paged_attention``.
        device_lens: int32 ``[B]``, the lengths, read when the operator runs.

    Returns:
        ``[T, Hq, Dv]`` in query's dtype; 0 for rows that see nothing.
    """
    lengths = kv_lens if device_lens is None else device_lens.tolist()
    outs = []
    begin = 0
    for b, (end, kv_len) in enumerate(zip(cu_query_lens, lengths, strict=True)):
        if end == begin:
            continue
        rows = query[begin:end].float().transpose(0, 1).unflatten(0, (num_kv_heads, -1))  # [Hkv, G, S, D]
        old = [
            decoded(_pages(codes, block_table[b], kv_len), _pages(exponents, block_table[b], kv_len))
            for codes, exponents in ((key_codes, key_exponents), (value_codes, value_exponents))
        ]
        first = kv_len - (end - begin)
        new = old
        if recent_key is not None and recent_value is not None and recent_table is not None:
            new = [_pages(cache, recent_table[b], kv_len).float() for cache in (recent_key, recent_value)]
            new = [_without(x, first - window + 1) for x in new]
        if window_left >= 0:  # blocks in front may be other sequences' by now, or other types'
            old = [_without(x, first - window_left) for x in old]
        row = torch.arange(end - begin, device=query.device)[:, None] + first
        key = torch.arange(kv_len, device=query.device)[None]
        outs.append(_attend(rows * scale, old, new, row, key, window, window_left, soft_cap, sinks).to(query.dtype))
        begin = end
    return torch.cat(outs) if outs else query.new_empty(0, query.shape[1], value_codes.shape[3])


def _pages(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` tokens of a sequence, ``[length, ...]``."""
    ids = table[: -(-length // cache.shape[1])].long()
    return cache.index_select(0, ids).flatten(0, 1)[:length]


def _without(tokens: torch.Tensor, first: int) -> torch.Tensor:
    """Tokens that no row sees as zeros: whatever they were times a weight of zero shall be zero."""
    return torch.cat((torch.zeros_like(tokens[: max(first, 0)]), tokens[max(first, 0) :]))


def _attend(
    query: torch.Tensor,
    old: list[torch.Tensor],
    new: list[torch.Tensor],
    row: torch.Tensor,
    key: torch.Tensor,
    window: int,
    window_left: int,
    soft_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One sequence: scaled query ``[Hkv, G, S, D]``, keys and values ``[L, Hkv, D]`` twice; returns ``[S, Hq, Dv]``."""
    near = key > row - window
    far, close = (torch.matmul(query, x[0].permute(1, 2, 0)[:, None]) for x in (old, new))
    scores = torch.where(near, close, far)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    hidden = key > row
    if window_left >= 0:
        hidden = hidden | (key < row - window_left)
    first = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    if sinks is not None:
        first = sinks.to(scores.dtype).view(*query.shape[:2], 1, 1).expand_as(first)
    scores = scores.masked_fill(hidden, -math.inf)
    top = torch.cat([scores, first], -1).amax(-1, keepdim=True)
    top = torch.where(torch.isneginf(top), 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True) + torch.exp(first - top)
    weights = weights / torch.where(total == 0, 1.0, total)
    parts = ((new, near), (old, ~near))
    out = sum(torch.matmul(torch.where(of, weights, 0.0), x[1].permute(1, 0, 2)[:, None]) for x, of in parts)
    assert isinstance(out, torch.Tensor)
    return out.flatten(0, 1).transpose(0, 1)


def _out(*args: object, out: torch.Tensor, **kwargs: object) -> torch.Tensor:
    return out.copy_(fp8_attention(*args, **kwargs))  # type: ignore[arg-type]


def native() -> bool:
    """Whether the runtime has the operators as single ones."""
    return _library is None and hasattr(torch.ops.aloft, "fp8_attention")


def ensure() -> None:
    """Makes the operators exist under ``torch.ops.aloft``. Idempotent; call it before the first use."""
    global _library
    if _library is not None or hasattr(torch.ops.aloft, "fp8_attention"):
        return
    _library = torch.library.Library("aloft", "FRAGMENT")
    for schema, function in zip((*SCHEMAS, _OUT), (compress_kv, fp8_attention, _out), strict=True):
        _library.define(schema)
        _library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
