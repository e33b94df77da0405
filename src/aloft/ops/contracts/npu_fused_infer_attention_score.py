"""Contract of npu_fused_infer_attention_score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.attention import fused_infer
from aloft.ops.contract import Bad, Case, Contract, Masked
from aloft.ops.families.attention import BF16, F16, F32, LENGTHS, TOLERANCE, TRIANGLE, dense, paged, totals
from aloft.ops.generate import Maker


def reference(*args: Any, **kwargs: Any) -> Any:
    """`fused_infer` with the rows of padding declared undefined."""
    out, lse = fused_infer(*args, **kwargs)
    layout, lengths = kwargs.get("input_layout", "BSH"), kwargs.get("actual_seq_lengths")
    if layout in ("TND", "NTD", "NTD_TND", "TND_NTD") or not lengths:
        return out, lse
    batch = args[0].size(0)
    limits = torch.tensor(list(lengths) * (batch if len(lengths) == 1 else 1))[:batch]
    tokens = args[0].size(2 if layout.startswith("BNSD") else 1)
    defined = torch.arange(tokens)[None] < limits[:, None]
    shape = {"BSH": (batch, tokens, 1), "BSND": (batch, tokens, 1, 1)}.get(layout, (batch, 1, tokens, 1))
    rows = defined.view(shape)
    return Masked(out, rows), Masked(lse, defined.view(batch, 1, tokens, 1)) if lse.numel() else lse


def packed_cases(make: Maker) -> Iterator[tuple[str, tuple[torch.Tensor, ...], dict[str, Any], torch.dtype]]:
    """Packed queries on paged caches: what a server asks for."""
    q_lens, kv_lens = zip(*LENGTHS, strict=True)
    for hq, hkv, d, size, dtype in ((9, 3, 64, 128, BF16), (8, 1, 128, 16, BF16), (2, 2, 128, 256, F16)):
        key, value, table = paged(make, kv_lens, hkv * d, size, dtype)
        query = make.normal((sum(q_lens), hq, d), dtype)
        shared: dict[str, Any] = {
            "actual_seq_lengths": totals(q_lens),
            "actual_seq_lengths_kv": list(kv_lens),
            "block_table": table,
            "block_size": size,
            "num_heads": hq,
            "num_key_value_heads": hkv,
            "scale": d**-0.5,
            "input_layout": "TND",
            "softmax_lse_flag": True,
        }
        modes: tuple[dict[str, Any], ...] = (
            {"sparse_mode": 3},
            {"sparse_mode": 4, "pre_tokens": 9, "next_tokens": 0},
            {"sparse_mode": 4, "pre_tokens": 140, "next_tokens": 2},
            {"sparse_mode": 2},
        )
        for mode in modes:
            label = f"paged TND {hq}/{hkv}/{d}, blocks of {size}, {mode}, {dtype}"
            yield label, (query, key, value), {**shared, **mode, "atten_mask": TRIANGLE}, dtype
        yield f"paged TND {hq}/{hkv}/{d}, no mask, {dtype}", (query, key, value), shared, dtype
    total = [3, 3, 40]
    for layout in ("TND", "NTD", "NTD_TND", "TND_NTD"):
        first = layout.partition("_")[0]
        query, key, value = (dense(make, first, 1, n, heads, 64, BF16) for n, heads in ((40, 4), (99, 2), (99, 2)))
        yield (
            f"dense {layout}",
            (query, key, value),
            {
                "actual_seq_lengths": total,
                "actual_seq_lengths_kv": [5, 25, 99],
                "num_heads": 4,
                "num_key_value_heads": 2,
                "scale": 0.125,
                "input_layout": layout,
                "sparse_mode": 3,
                "atten_mask": TRIANGLE.bool(),
                "softmax_lse_flag": True,
            },
            BF16,
        )


def padded_cases(make: Maker) -> Iterator[tuple[str, tuple[torch.Tensor, ...], dict[str, Any], torch.dtype]]:
    """Padded layouts: dense keys, masks, position bias, MLA."""
    layouts = ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD")
    for index, layout in enumerate(layouts):
        for queries in (1, 17):
            dtype = (BF16, F16)[index % 2]
            sizes = ((queries, 6), (133, 2), (133, 2))
            operands = tuple(dense(make, layout, 2, n, heads, 80, dtype) for n, heads in sizes)
            shared = {"num_heads": 6, "num_key_value_heads": 2, "scale": 0.2, "input_layout": layout}
            lse = {"softmax_lse_flag": True}
            yield f"{layout}, {queries} queries", operands, {**shared, **lse}, dtype
            yield (
                f"{layout}, {queries} queries, lengths",
                operands,
                {**shared, "actual_seq_lengths_kv": [33, 128]},
                dtype,
            )
            mask = make.bools((2, 1, queries, 140), 0.3)
            mask[0, 0, 0] = True
            masked = {**shared, **lse, "atten_mask": mask}
            yield f"{layout}, {queries} queries, full mask", operands, {**masked, "sparse_mode": 1}, dtype
            band = {**masked, "pre_tokens": 3, "next_tokens": 20}
            yield f"{layout}, {queries} queries, mask and band", operands, band, dtype
            bias = make.normal((1, 6, queries, 133), dtype)
            yield f"{layout}, {queries} queries, position bias", operands, {**shared, "pse_shift": bias}, dtype
    operands = tuple(dense(make, "BNSD", 2, n, 4, 64, BF16) for n in (20, 50, 50))
    lengths = {"num_heads": 4, "input_layout": "BNSD", "scale": 0.1, "actual_seq_lengths": [13, 20]}
    yield "padded queries", operands, {**lengths, "softmax_lse_flag": True}, BF16
    kv_lens = [1, 200]
    latent, _, table = paged(make, kv_lens, 512, 128, BF16)
    rope = make.normal((latent.size(0), 128, 64), BF16)
    absorbed = {
        "query_rope": make.normal((2, 1, 16, 64), BF16),
        "key_rope": rope,
        "block_table": table,
        "block_size": 128,
        "actual_seq_lengths_kv": kv_lens,
        "num_heads": 16,
        "num_key_value_heads": 1,
        "scale": 192**-0.5,
        "input_layout": "BSND_NBSD",
    }
    yield "absorbed MLA decode", (make.normal((2, 1, 16, 512), BF16), latent, latent), absorbed, BF16


def _cases() -> Iterator[Case]:
    make = Maker("npu_fused_infer_attention_score")
    for group in (packed_cases, padded_cases):
        for label, args, kwargs, dtype in group(make):
            yield Case(label, args, kwargs, dtype=dtype, returns=(dtype, F32))


def _bad() -> Iterator[Bad]:
    make = Maker("npu_fused_infer_attention_score, bad")
    query, cache = make.normal((6, 4, 64), BF16), make.normal((4, 16, 128), BF16)
    table = torch.zeros(2, 2, dtype=torch.int32)
    good: dict[str, Any] = {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "block_size": 16,
        "block_table": table,
        "actual_seq_lengths": [2, 6],
        "actual_seq_lengths_kv": [20, 30],
    }

    def bad(label: str, names: str, strict: bool = False, operands: Any = None, **change: Any) -> Bad:
        return Bad(label, operands or (query, cache, cache), {**good, **change}, names=names, strict=strict)

    yield bad("query lengths are not cumulative", "actual_seq_lengths", actual_seq_lengths=[4, 2])
    yield bad("query lengths do not end at T", "actual_seq_lengths", actual_seq_lengths=[2, 5])
    yield bad("a key length too many", "actual_seq_lengths_kv", actual_seq_lengths_kv=[20, 30, 1])
    yield bad("key length past the block table", "block_table", actual_seq_lengths_kv=[20, 33])
    yield bad("block table of another batch", "block_table", block_table=table[:1])
    yield bad("block table of int64", "block_table", block_table=table.long())
    yield bad("causal mode without a mask", "atten_mask", sparse_mode=3)
    yield bad("a small compressed mask", "atten_mask", sparse_mode=3, atten_mask=TRIANGLE[:64, :64])
    yield bad("a float mask", "atten_mask", sparse_mode=3, atten_mask=TRIANGLE.float())
    yield bad("keys of another dtype", "dtype", operands=(query, cache.half(), cache.half()))
    yield bad("heads do not divide", "num_key_value_heads", num_key_value_heads=3)
    tokens_first = make.normal((4, 16, 2, 64), BF16)
    yield bad("cache with tokens before heads", "key", operands=(query, tokens_first, tokens_first))
    four = make.normal((1, 4, 600, 64), BF16)
    row = {"num_heads": 4, "input_layout": "BNSD", "atten_mask": torch.zeros(1, 1, 1, 600, dtype=torch.bool)}
    yield Bad("mask of one row", (four, four, four), row, names="atten_mask")
    odd, odd_cache = make.normal((6, 4, 80), BF16), make.normal((4, 16, 160), BF16)
    yield bad("head size 80, packed", "head sizes", strict=True, operands=(odd, odd_cache, odd_cache))
    wide = (query.float(), cache.float(), cache.float())
    yield bad("float32", "float32", strict=True, operands=wide)
    short = {"sparse_mode": 3, "atten_mask": TRIANGLE, "actual_seq_lengths_kv": [20, 3]}
    yield bad("fewer keys than queries", "keys", strict=True, **short)


CONTRACT = Contract(
    name="npu_fused_infer_attention_score",
    schemas=("npu::npu_fused_infer_attention_score",),
    formula="out = softmax(scale · q · kᵀ + pse_shift, masked) · v; query head h uses key head h div (Hq / Hkv).",
    dtypes=(BF16, F16),
    limits=(
        "layouts BSH, BSND, BNSD, TND, NTD and the *_BSND, *_BNSD, *_NBSD, *_NTD, *_TND outputs",
        "packed lengths: queries cumulative and ending at T; keys per sequence with a block table, else cumulative",
        "paged cache: [nb, bs, Hkv·D], [nb, Hkv, bs, D], [nb, Hkv, D/16, bs, 16]; block_table int32 [B, blocks]",
        "sparse modes 0 to 4; modes 2, 3, 4 take the 2048² upper triangle, modes 0 and 1 a full mask; 1 hides",
        "strict: D a multiple of 16 up to 512; packed 64, 128, 192 (value 128 or 192), 128 + rope 64, 512 + rope 64",
        "strict: Hq ≤ 256, Hq / Hkv ≤ 64; block size a multiple of 16; keys ≥ queries under modes 3 and 4",
        "a row without visible key is 0; its log-sum-exp +inf, or -3.4e38 where one query token is decoded",
        "quantised forms, left padding and shared prefixes are refused",
    ),
    undefined=("rows of padding in BSH, BSND and BNSD outputs (poisoned in strict mode)",),
    tolerance=TOLERANCE,
    reference=reference,
    cases=_cases,
    bad=_bad,
    source="contracts 6.1, 6.3",
)
