"""Contract of softmax (and its gradient)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.softmax import DTYPES, TOLERANCE, bad_calls, gradient_cases, value_cases


def _reference(first: torch.Tensor, second: Any, third: Any, *_: Any) -> torch.Tensor:
    if isinstance(second, torch.Tensor):  # gradient: (grad_output, output, dim, input_dtype)
        return (first - (first * second).sum(third, keepdim=True)) * second
    return torch.softmax(first, second)


def _cases() -> Iterator[Case]:
    yield from value_cases("softmax", "aten::_softmax")
    yield from gradient_cases("softmax", "aten::_softmax_backward_data", torch.softmax)


def _bad() -> Iterator[Bad]:
    yield from bad_calls("aten::_softmax")


CONTRACT = Contract(
    name="softmax",
    schemas=("aten::_softmax", "aten::_softmax_backward_data"),
    formula="y = exp(x - max x) / Σ exp(x - max x) along dim; gradient: (g - Σ g·y)·y.",
    dtypes=DTYPES,
    limits=(
        "dim may be negative; a 0-dimensional tensor counts as one element",
        "a line that holds NaN, +inf, or nothing but -inf becomes NaN",
        "any layout; empty tensors give empty results",
    ),
    tolerance=TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="torch's definition",
)
