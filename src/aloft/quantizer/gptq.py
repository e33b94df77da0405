"""GPTQ (arXiv 2210.17323): round columns one after the other, spread each error over the columns still to come."""

from __future__ import annotations

import torch

from aloft.quantizer.grid import Grid

_BLOCK = 128


def round_with_feedback(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid, damping: float = 0.01) -> torch.Tensor:
    """Codes int8 ``[N, K]`` whose output error on the calibration inputs is small.

    Columns are taken in descending order of their activations' energy; the grid is fixed beforehand, so no order of
    the columns has to be stored.

    Args:
        weight: float32 ``[N, K]``.
        hessian: float32 ``[K, K]``, the sum of x xᵀ over calibration inputs.
        damping: added to the diagonal, as a part of its mean.
    """
    size = weight.shape[1]
    order = torch.argsort(hessian.diagonal(), descending=True, stable=True)
    inverse = _inverse_factor(hessian[order][:, order], damping)
    remaining = weight[:, order].clone()
    scale, zero = (part[:, order] for part in grid.columns(0, size))
    codes = torch.empty_like(remaining)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        block, errors = remaining[:, start:stop].clone(), torch.empty_like(remaining[:, start:stop])
        local = inverse[start:stop, start:stop]
        for column in range(stop - start):
            at = start + column
            code = torch.round(block[:, column] / scale[:, at] + zero[:, at]).clamp_(grid.low, grid.high)
            codes[:, at] = code
            error = (block[:, column] - (code - zero[:, at]) * scale[:, at]) / local[column, column]
            block[:, column:] -= torch.outer(error, local[column, column:])
            errors[:, column] = error
        remaining[:, stop:] -= errors @ inverse[start:stop, stop:]
    return codes[:, torch.argsort(order)].to(torch.int8)


def _inverse_factor(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper Cholesky factor of the damped inverse. Inputs that never fire get the diagonal's mean."""
    hessian = hessian.double().clone()
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean()) or 1.0
    diagonal[diagonal == 0] = mean
    identity = torch.eye(hessian.shape[0], dtype=torch.float64)
    for attempt in range(6):
        factor, failed = torch.linalg.cholesky_ex(hessian + identity * (damping * mean * 10**attempt))
        if not failed:
            inverse = torch.cholesky_inverse(factor)
            return torch.linalg.cholesky(inverse, upper=True).float()
    raise ValueError("the calibration inputs give no positive definite Hessian: use more or other calibration text")
