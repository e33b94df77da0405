"""Contract of npu_fused_infer_attention_score_v2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts import npu_fused_infer_attention_score as first
from aloft.ops.families.attention import BF16, F32, TOLERANCE, TRIANGLE, paged, renamed, totals
from aloft.ops.generate import Maker

NAMES = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}
BACK = {new: old for old, new in NAMES.items()}


def _reference(*args: torch.Tensor, **kwargs: Any) -> Any:
    return first.reference(*args, **renamed(kwargs, BACK))


def _cases() -> Iterator[Case]:
    make = Maker("npu_fused_infer_attention_score_v2")
    for group in (first.packed_cases, first.padded_cases):
        for label, args, kwargs, dtype in group(make):
            yield Case(label, args, renamed(kwargs, NAMES), dtype=dtype, returns=(dtype, F32))
    q_lens, kv_lens = [1, 40, 2], [30, 300, 2]
    for d, hq, hkv in ((64, 8, 2), (128, 4, 4)):
        key, value, table = paged(make, kv_lens, hkv * d, 128, BF16)
        sinks = {
            "actual_seq_qlen": totals(q_lens),
            "actual_seq_kvlen": kv_lens,
            "block_table": table,
            "block_size": 128,
            "num_query_heads": hq,
            "num_key_value_heads": hkv,
            "softmax_scale": 0.3,
            "input_layout": "TND",
            "atten_mask": TRIANGLE,
            "return_softmax_lse": True,
            "learnable_sink": make.normal((hq,), BF16, scale=3.0),
        }
        query = make.normal((sum(q_lens), hq, d), BF16)
        for mode in ({"sparse_mode": 3}, {"sparse_mode": 4, "pre_tokens": 19, "next_tokens": 0}):
            label = f"learnable sink, {d}, {mode}"
            yield Case(label, (query, key, value), {**sinks, **mode}, dtype=BF16, returns=(BF16, F32))


def _bad() -> Iterator[Bad]:
    make = Maker("npu_fused_infer_attention_score_v2, bad")
    query, key = make.normal((6, 4, 64), BF16), make.normal((9, 2, 64), BF16)
    good: dict[str, Any] = {
        "num_query_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "actual_seq_qlen": [2, 6],
        "actual_seq_kvlen": [3, 9],
    }
    short = {"learnable_sink": make.normal((3,), BF16)}
    yield Bad("a sink too few", (query, key, key), {**good, **short}, names="learnable_sink")
    yield Bad(
        "keys end elsewhere", (query, key, key), {**good, "actual_seq_kvlen": [3, 8]}, names="actual_seq_lengths_kv"
    )
    scale = {"dequant_scale_query": torch.ones(6, 4)}
    yield Bad("quantised query", (query, key, key), {**good, **scale}, names="dequant_scale_query")
    padded = tuple(make.normal((1, 4, n, 64), BF16) for n in (3, 9, 9))
    layout = {"num_query_heads": 4, "input_layout": "BNSD", "learnable_sink": make.normal((4,), BF16)}
    yield Bad("a sink with a padded layout", padded, layout, names="learnable_sink", strict=True)


CONTRACT = Contract(
    name="npu_fused_infer_attention_score_v2",
    schemas=("npu::npu_fused_infer_attention_score_v2",),
    formula="As npu_fused_infer_attention_score; a learnable sink adds exp(sink) to the denominator of its head.",
    dtypes=first.CONTRACT.dtypes,
    limits=(
        *first.CONTRACT.limits,
        "learnable_sink bf16 [Hq], strict: TND and NTD_TND with head size 64 or 128; the log-sum-exp excludes it",
    ),
    undefined=first.CONTRACT.undefined,
    tolerance=TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 6.4",
)
