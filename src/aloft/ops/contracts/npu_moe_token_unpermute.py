"""Contract of npu_moe_token_unpermute: weighted sums of rows, back in the order of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts

F32, F16, BF16, I32 = torch.float32, torch.float16, torch.bfloat16, torch.int32


def _reference(rows: torch.Tensor, places: torch.Tensor, probs: torch.Tensor | None = None) -> torch.Tensor:
    weights = torch.ones(len(places), 1, dtype=rows.dtype) if probs is None else probs
    padded = torch.cat((rows, torch.zeros(1, rows.shape[1], dtype=rows.dtype)))
    taken = padded[places.long().clamp(max=len(rows))].view(*weights.shape, rows.shape[1])
    return (taken * weights[..., None].to(rows.dtype)).sum(1)


def _cases() -> Iterator[Case]:
    make = Maker("npu_moe_token_unpermute")
    for tokens, k, hidden in ((1, 2, 64), (5, 3, 37), (33, 8, 600), (4, 1, 1)):
        places = make.permutation(tokens * k, I32)
        for dtype in (F32, F16, BF16):
            rows, size = make.normal((tokens * k, hidden), dtype), f"{tokens} x {k}, {hidden}, {dtype}"
            yield Case(size, (rows, places, make.uniform((tokens, k), dtype)), dtype=dtype)
            yield Case(f"{size}, float32 weights", (rows, places, make.uniform((tokens, k))), dtype=dtype)
            yield Case(f"{size}, no weights", (rows, places), dtype=dtype)
            yield Case(f"{size}, rows left out", (rows, places + 1, make.uniform((tokens, k), dtype)), dtype=dtype)
            for label, view in layouts(rows):
                yield Case(f"{size}, {label}", (view, places, make.uniform((tokens, k))), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_moe_token_unpermute, bad")
    rows, places = make.normal((6, 8), BF16), make.permutation(6, I32)
    yield Bad("too few places", (rows, places[:4].clone(), make.uniform((3, 2))), names="sorted_indices")
    yield Bad("a negative place", (rows, places - 1, make.uniform((3, 2))), names="sorted_indices", strict=True)
    yield Bad("padded mode", (rows, places, make.uniform((3, 2)), True), names="padded_mode")


CONTRACT = Contract(
    name="npu_moe_token_unpermute",
    schemas=("npu::npu_moe_token_unpermute",),
    formula="out[t] = Σ_j rows[sorted_indices[t · k + j]] · probs[t, j].",
    dtypes=(F32, F16, BF16),
    limits=(
        "probs [tokens, k] of the rows' dtype, float32 or bfloat16, or None (k = 1); k at most 512",
        "indices int32, not negative; those behind the last row add nothing; padded_mode False",
    ),
    tolerance={
        F32: Tolerance(2**-20, 2**-20, "fp32 sums of at most 8 products"),
        F16: Tolerance(2**-11, 2**-19, "fp32 sums, one rounding to fp16"),
        BF16: Tolerance(2**-8, 2**-19, "fp32 sums, one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 8.5: vendor documentation and sources",
)
