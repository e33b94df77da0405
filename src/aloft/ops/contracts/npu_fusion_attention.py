"""Contract of npu_fusion_attention (forward; its gradient is compared with autograd by the tests)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from aloft.ops import attention
from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.attention import BF16, F16, F32, TOLERANCE, TRIANGLE, dense
from aloft.ops.generate import Maker


def _reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    pre_tockens: int = attention.UNBOUNDED,
    next_tockens: int = attention.UNBOUNDED,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
) -> tuple[Any, ...]:
    d = query.size(-1) // (head_num if "H" in input_layout else 1)
    kv_heads = key.size(-1) // d if "H" in input_layout else key.size(input_layout.index("N"))
    q, k, v = (
        attention.split_heads(t, input_layout, n) for t, n in ((query, head_num), (key, kv_heads), (value, kv_heads))
    )
    if input_layout == "TND":
        ends = (actual_seq_qlen or [], actual_seq_kvlen or [], actual_seq_kvlen or [])
        parts = [t[0].split(attention.lengths_of(e)) for t, e in zip((q, k, v), ends, strict=True)]
    else:
        parts = [tuple(t) for t in (q, k, v)]
    outs = []
    for b, (rows, keys, values) in enumerate(zip(*parts, strict=True)):
        n, m = rows.size(0), keys.size(0)
        shown = attention.visible(n, m, sparse_mode, pre_tockens, next_tockens, banded=atten_mask is not None)
        if atten_mask is not None and sparse_mode < 2:
            mask = atten_mask if atten_mask.dim() == 2 else atten_mask[b if atten_mask.size(0) > 1 else 0]
            shown = shown & (mask[..., :n, :m] == 0)
        bias = None if pse is None else pse[b if pse.size(0) > 1 else 0]
        outs.append(attention.attend(rows, keys, values, scale, shown, bias)[0])
    out = torch.cat(outs)[None] if input_layout == "TND" else torch.stack(outs)
    # softmax_max and softmax_sum are no numbers of their own: only max + ln(sum) is defined.
    return attention.join_heads(out, input_layout), None, None, query.new_zeros(0)


def _call(*args: Any, **kwargs: Any) -> Any:
    results = torch.ops.npu.npu_fusion_attention(*args, **kwargs)
    return results[:4]  # the rest are integers: seed, offset and size of the dropout mask


def _cases() -> Iterator[Case]:
    make = Maker("npu_fusion_attention")
    kinds = ((F32, 33, 33), (BF16, 64, 64), (F16, 128, 96), (F32, 700, 16))
    for index, layout in enumerate(("BSH", "SBH", "BSND", "BNSD")):
        dtype, d, d_v = kinds[index]
        operands = tuple(
            dense(make, layout, 2, n, heads, size, dtype) for n, heads, size in ((70, 6, d), (133, 2, d), (133, 2, d_v))
        )
        mask = make.bools((2, 6, 70, 133), 0.4)
        mask[1, 2, 5] = True
        forms: dict[str, dict[str, Any]] = {
            "plain": {},
            "causal from the left top": {"sparse_mode": 2, "atten_mask": TRIANGLE},
            "causal from the right bottom": {"sparse_mode": 3, "atten_mask": TRIANGLE},
            "band": {"sparse_mode": 4, "atten_mask": TRIANGLE, "pre_tockens": 20, "next_tockens": 5},
            "a mask a head": {"sparse_mode": 1, "atten_mask": mask},
            "mask and band": {"atten_mask": mask[:, :1], "pre_tockens": 30, "next_tockens": 40},
            "one mask": {"sparse_mode": 1, "atten_mask": mask[0, 0]},
            "position bias": {"pse": make.normal((1, 6, 70, 133), dtype)},
        }
        for label, options in forms.items():
            kwargs = {"scale": d**-0.5, **options}
            if "atten_mask" in kwargs:
                kwargs["atten_mask"] = kwargs["atten_mask"].bool()
            returns = (dtype, F32, F32, dtype)
            yield Case(f"{layout}, {label}, {dtype}", (*operands, 6, layout), kwargs, dtype=dtype, returns=returns)
    for dtype in (F32, BF16):
        operands = tuple(make.normal((n, heads, 64), dtype) for n, heads in ((71, 4), (300, 2), (300, 2)))
        lengths = {"actual_seq_qlen": [3, 3, 70, 71], "actual_seq_kvlen": [5, 25, 99, 300], "scale": 0.125}
        returns = (dtype, F32, F32, dtype)
        for mode in (0, 3):
            masked = {"sparse_mode": mode, "atten_mask": TRIANGLE.bool()} if mode else {}
            label = f"TND, mode {mode}, {dtype}"
            yield Case(label, (*operands, 4, "TND"), {**lengths, **masked}, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_fusion_attention, bad")
    query, key = make.normal((2, 20, 4, 16)), make.normal((2, 30, 2, 16))
    yield Bad("keys of another dtype", (query, key.half(), key, 4, "BSND"), names="dtype")
    yield Bad("no mask", (query, key, key, 4, "BSND"), {"sparse_mode": 2}, names="atten_mask")
    small = {"sparse_mode": 2, "atten_mask": TRIANGLE[:64, :64].bool()}
    yield Bad("a small compressed mask", (query, key, key, 4, "BSND"), small, names="atten_mask")
    row = {"sparse_mode": 1, "atten_mask": torch.zeros(1, 1, 1, 30, dtype=torch.bool)}
    yield Bad("mask of one row", (query, key, key, 4, "BSND"), row, names="atten_mask")
    bias = {"pse": torch.zeros(1, 4, 20, 10)}
    yield Bad("short bias", (query, key, key, 4, "BSND"), bias, names="pse")
    packed = {"actual_seq_qlen": [10, 39], "actual_seq_kvlen": [10, 40]}
    flat = query.flatten(0, 1)
    yield Bad("lengths end elsewhere", (flat, flat, flat, 4, "TND"), packed, names="actual_seq_qlen")


CONTRACT = Contract(
    name="npu_fusion_attention",
    schemas=("npu::npu_fusion_attention",),
    formula="out = dropout(softmax(scale · q · kᵀ + pse, masked), keep_prob) · v; also the row maximum and sum of exp.",
    dtypes=(F32, F16, BF16),
    limits=(
        "layouts BSH, SBH, BSND, BNSD, TND; head sizes 1 to 768; head_num a multiple of the key heads",
        "mask bool or uint8, 1 hides: [Sq, Skv], [1, 1, Sq, Skv], [B, 1, Sq, Skv], [B, N, Sq, Skv]; compressed 2048²",
        "sparse modes 0 to 6; pse [1 or B, N, Sq or 1, Skv], types 0 and 1",
        "softmax_max and softmax_sum [B, N, S, 8], eight equal values; log-sum-exp = max + ln(sum)",
        'TND: statistics of a sequence lie [N, tokens, 8], with softmax_layout="TND" [tokens, N, 8]',
        "a row without visible key is 0 with a sum of 0",
    ),
    undefined=("softmax_out holds nothing",),
    tolerance=TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=_bad,
    call=_call,
    source="contracts 6.5",
)
