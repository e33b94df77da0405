"""Contract of log_softmax (and its gradient)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.softmax import DTYPES, TOLERANCE, bad_calls, gradient_cases, value_cases


def _reference(first: torch.Tensor, second: Any, third: Any, *_: Any) -> torch.Tensor:
    if isinstance(second, torch.Tensor):  # gradient: (grad_output, output, dim, input_dtype)
        return first - second.exp() * first.sum(third, keepdim=True)
    return torch.log_softmax(first, second)


def _cases() -> Iterator[Case]:
    yield from value_cases("log_softmax", "aten::_log_softmax")
    yield from gradient_cases("log_softmax", "aten::_log_softmax_backward_data", torch.log_softmax)


def _bad() -> Iterator[Bad]:
    yield from bad_calls("aten::_log_softmax")


CONTRACT = Contract(
    name="log_softmax",
    schemas=("aten::_log_softmax", "aten::_log_softmax_backward_data"),
    formula="y = x - max x - ln Σ exp(x - max x) along dim; gradient: g - exp(y)·Σ g.",
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
