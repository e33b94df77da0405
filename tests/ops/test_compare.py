"""The comparison with the reference: what counts as equal, and how errors are measured."""

from __future__ import annotations

import math

import pytest
import torch

from aloft.ops.compare import compare
from aloft.ops.contract import EXACT, Masked, Tolerance

NAN, INF = float("nan"), float("inf")


def test_error_is_measured_against_the_limit() -> None:
    result = compare(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]).double(), Tolerance(0.1, 0.0, "x"))
    assert result.problem is None
    assert result.error == pytest.approx(0.1, rel=1e-5)
    assert result.limit == pytest.approx(0.21, rel=1e-5)
    assert result.ratio == pytest.approx(0.1 / 0.21, rel=1e-5)


def test_too_far_names_the_worst_element() -> None:
    result = compare(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0]).double(), Tolerance(0.1, 0.0, "x"))
    assert result.problem is not None and "1 of 2 elements" in result.problem and "5.0 instead of 2.0" in result.problem


@pytest.mark.parametrize(
    ("actual", "expected", "equal"),
    [
        ([NAN], [NAN], True),
        ([INF], [INF], True),
        ([-INF], [INF], False),
        ([NAN], [0.0], False),
        ([0.0], [NAN], False),
        ([INF], [1.0], False),
        ([1.0], [INF], False),
    ],
)
def test_special_values(actual: list[float], expected: list[float], equal: bool) -> None:
    result = compare(torch.tensor(actual), torch.tensor(expected).double(), Tolerance(10.0, 10.0, "wide"))
    assert (result.problem is None) is equal
    assert equal or math.isinf(result.ratio)


def test_exact_means_equal() -> None:
    assert compare(torch.tensor([1.0]), torch.tensor([1.0]).double(), EXACT).problem is None
    assert compare(torch.tensor([1.0]), torch.tensor([1.0 + 1e-7]).double(), EXACT).problem is not None
    assert compare(torch.tensor([3]), torch.tensor([3]), EXACT).problem is None
    assert compare(torch.tensor([3]), torch.tensor([4]), EXACT).problem is not None
    assert compare(torch.tensor([3]), torch.tensor([4]), Tolerance(0, 1, "a tie")).problem is None
    assert compare(torch.tensor([True]), torch.tensor([False]), EXACT).problem is not None


def test_large_integers_are_not_rounded() -> None:
    big = 2**60
    assert compare(torch.tensor([big]), torch.tensor([big + 1]), EXACT).problem is not None


def test_shape_and_mask() -> None:
    assert "shape" in (compare(torch.zeros(2), torch.zeros(3), EXACT).problem or "")
    assert compare(torch.empty(0, 3), torch.empty(0, 3), EXACT).problem is None
    want = Masked(torch.zeros(2, 2), torch.tensor([[True], [False]]))
    assert compare(torch.tensor([[0.0, 0.0], [7.0, NAN]]), want, EXACT).problem is None
    assert compare(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), want, EXACT).problem is not None
