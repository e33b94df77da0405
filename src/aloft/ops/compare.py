"""Compares a result with its float64 reference, in units of what the contract allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aloft.ops.contract import Masked, Tolerance


@dataclass(frozen=True)
class Comparison:
    """The worst element of one output. `error` and `limit` are absolute; it passes when there is no `problem`."""

    error: float = 0.0
    limit: float = 0.0
    problem: str | None = None

    @property
    def ratio(self) -> float:
        """Error in units of the limit (0 when equal, infinite for any difference where the limit is 0)."""
        if self.error == 0:
            return 0.0
        return self.error / self.limit if self.limit else float("inf")


def compare(actual: torch.Tensor, expected: torch.Tensor | Masked, tolerance: Tolerance) -> Comparison:
    """Compares two CPU tensors. NaN must meet NaN, infinities must be equal, integers and bools are exact."""
    defined = None
    if isinstance(expected, Masked):
        defined = expected.defined
        expected = expected.value
    if actual.shape != expected.shape:
        return Comparison(problem=f"shape {tuple(actual.shape)}, the reference has {tuple(expected.shape)}")
    if actual.numel() == 0:
        return Comparison()
    floating = actual.dtype.is_floating_point or actual.dtype.is_complex
    wide = torch.float64 if not actual.dtype.is_complex else torch.complex128
    if not floating:
        wide = torch.int64
    got, want = actual.to(wide), expected.to(wide)
    if defined is not None:
        keep = defined.expand(got.shape)
        got, want = got[keep], want[keep]
        if got.numel() == 0:
            return Comparison()
    if not floating:
        different = got != want
        if not bool(different.any()):
            return Comparison()
        error = (got - want).abs().double()
        limit = tolerance.atol + tolerance.rtol * want.abs().double()
    else:
        same = (got == want) | (got.isnan() & want.isnan())
        error = torch.where(same, 0.0, (got - want).abs().double())
        error = torch.where(error.isnan(), float("inf"), error)  # NaN met a number, or infinities differ
        limit = tolerance.atol + tolerance.rtol * want.abs().double()
        limit = torch.where(limit.isfinite(), limit, 0.0)
    over = torch.where(error == 0, 0.0, error / limit)
    worst = int(over.reshape(-1).argmax())
    result_error, result_limit = float(error.reshape(-1)[worst]), float(limit.reshape(-1)[worst])
    if float(over.reshape(-1)[worst]) <= 1:
        return Comparison(result_error, result_limit)
    count = int((over > 1).sum())
    got_at, want_at = got.reshape(-1)[worst].item(), want.reshape(-1)[worst].item()
    return Comparison(
        result_error,
        result_limit,
        f"{count} of {got.numel()} elements differ; worst: {got_at} instead of {want_at} "
        f"(off by {result_error:.3g}, allowed {result_limit:.3g})",
    )
