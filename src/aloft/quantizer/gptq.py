"""Rounding that knows the inputs: GPTQ, and the descent that betters its result.

GPTQ (arXiv 2210.17323) rounds columns one after the other and spreads each error over the columns still to come.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from aloft.quantizer.grid import Grid

_BLOCK = 128
# a scale may leave the one it was fitted with by this factor
_FREEDOM = 1.4


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
    # transposed: a column of the weight is contiguous
    remaining = weight.t()[order].contiguous()
    scale, zero = (part.t()[order].contiguous() for part in grid.columns(0, size))
    codes = torch.empty_like(remaining)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        block, errors = remaining[start:stop].clone(), torch.empty_like(remaining[start:stop])
        local = inverse[start:stop, start:stop]
        for column in range(stop - start):
            at = start + column
            codes[at] = torch.round(block[column] / scale[at] + zero[at]).clamp_(grid.low, grid.high)
            errors[column] = (block[column] - (codes[at] - zero[at]) * scale[at]) / local[column, column]
            block[column + 1 :].addr_(local[column, column + 1 :], errors[column], alpha=-1)
        remaining[stop:].addmm_(inverse[start:stop, stop:].t(), errors, alpha=-1)
    return codes[torch.argsort(order)].t().contiguous().to(torch.int8)


def refine(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    grid: Grid,
    codes: torch.Tensor,
    rounds: int,
    scale_dtype: torch.dtype,
    damping: float = 0.01,
) -> tuple[torch.Tensor, Grid]:
    """Codes and grid with a smaller output error: in each round the scales are solved for by least squares, then every
    column takes its best code given all others (coordinate descent). Zero points stay.

    Args: as of ``round_with_feedback``; scale_dtype: scales are rounded to this type.
    """
    damped = hessian.double()
    damped = (damped + torch.eye(len(damped)) * (damping * float(damped.diagonal().mean()) or 1.0)).float()
    made = codes.float()
    for _ in range(rounds):
        grid = _best_scales(weight, damped, grid, made, scale_dtype)
        made = _best_codes(weight, damped, grid, made)
    return made.to(torch.int8), grid


def _best_scales(
    weight: torch.Tensor, hessian: torch.Tensor, grid: Grid, codes: torch.Tensor, dtype: torch.dtype
) -> Grid:
    """For every row the scales of its groups that minimise the error of these codes; rows that gain nothing stay."""
    rows, columns = weight.shape
    groups = grid.scale.shape[1]
    steps = (codes - grid.columns(0, columns)[1]).view(rows, groups, grid.group)
    normal = torch.empty(rows, groups, groups)
    for index in range(groups):
        reach = steps[:, index] @ hessian[index * grid.group : (index + 1) * grid.group]
        normal[:, index] = (reach.view(rows, groups, grid.group) * steps).sum(-1)
    wanted = ((weight @ hessian).view(rows, groups, grid.group) * steps).sum(-1)
    normal = normal.double()
    diagonal = normal.diagonal(dim1=1, dim2=2)
    diagonal += 1e-6 * diagonal.mean(1, keepdim=True) + 1e-12
    solved = torch.linalg.solve(normal, wanted.double()).float()
    ratio = solved / grid.scale
    solved = torch.where((ratio > 1 / _FREEDOM) & (ratio < _FREEDOM), solved, grid.scale).to(dtype).float()
    changed = replace(grid, scale=solved)
    better = _row_errors(weight, hessian, changed, codes) < _row_errors(weight, hessian, grid, codes)
    return replace(grid, scale=torch.where(better[:, None], solved, grid.scale))


def _best_codes(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid, codes: torch.Tensor) -> torch.Tensor:
    size = weight.shape[1]
    # transposed: a column of the weight is contiguous
    scale, zero = (part.t().contiguous() for part in grid.columns(0, size))
    made, target = codes.t().contiguous(), weight.t().contiguous()
    off = (made - zero) * scale - target
    slope = hessian @ off  # half the error's gradient
    diagonal = hessian.diagonal()
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        near, local = slope[start:stop].clone(), hessian[start:stop, start:stop]
        moves = torch.empty_like(near)
        for column in range(stop - start):
            at = start + column
            best = target[at] + off[at] - near[column] / diagonal[at]
            made[at] = torch.round(best / scale[at] + zero[at]).clamp_(grid.low, grid.high)
            moves[column] = (made[at] - zero[at]) * scale[at] - target[at] - off[at]
            near.addr_(local[column], moves[column])
        slope.addmm_(hessian[:, start:stop], moves)
        off[start:stop] += moves
    return made.t().contiguous()


def _row_errors(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid, codes: torch.Tensor) -> torch.Tensor:
    off = grid.value(codes) - weight
    return ((off @ hessian) * off).sum(1)


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
