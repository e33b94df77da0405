"""Operands and tolerances shared by the contracts of the attention operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from aloft.ops.attention import join_heads
from aloft.ops.contract import Tolerance
from aloft.ops.generate import Maker

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TRIANGLE = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1)
TOLERANCE: dict[torch.dtype | tuple[torch.dtype, int], Tolerance] = {
    BF16: Tolerance(2**-8, 1e-5, "fp32 scores, softmax and sums, one rounding to bf16"),
    F16: Tolerance(2**-11, 1e-5, "fp32 scores, softmax and sums, one rounding to fp16"),
    F32: Tolerance(3e-6, 3e-6, "fp32 scores, softmax and sums in any order"),
}
LENGTHS = ((1, 1), (1, 7), (7, 7), (1, 127), (5, 128), (129, 129), (2, 300), (1, 513), (0, 5), (1, 0))
"""(query tokens, keys) of the sequences of a packed call: nothing, one, and both sides of a block and of a tile."""


def totals(lengths: Sequence[int]) -> list[int]:
    """Running totals without a leading 0."""
    return torch.tensor(list(lengths)).cumsum(0).tolist()


def paged(
    make: Maker, kv_lens: Sequence[int], width: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Key and value caches `[nb, size, width]` and a block table. Blocks lie in no order; what no sequence owns is NaN,
    and table entries past a length point at a block of NaN."""
    per = max(1, max(-(-n // size) for n in kv_lens))
    used = len(kv_lens) * per
    table = make.permutation(used, torch.int32).view(len(kv_lens), per)
    key, value = (make.normal((used + 1, size, width), dtype) for _ in range(2))
    key[used], value[used] = math.nan, math.nan
    for row, n in zip(table, kv_lens, strict=True):
        row[-(-n // size) :] = used
        if n % size:
            key[row[n // size], n % size :] = math.nan
            value[row[n // size], n % size :] = math.nan
    return key, value, table


def dense(make: Maker, layout: str, b: int, s: int, heads: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    """Normally distributed values in `layout` (its part before "_")."""
    return join_heads(make.normal((b, s, heads, d), dtype), layout.partition("_")[0]).contiguous()


def renamed(kwargs: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """`kwargs` under the names another version of the operator uses."""
    return {names.get(key, key): value for key, value in kwargs.items()}
