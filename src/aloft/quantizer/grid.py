"""Integer grids: which scale and zero point a weight is rounded with, and the rounding itself.

A grid has one scale and zero point a row and group of input columns: ``w = (q - zero) * scale`` with signed codes q.
Rounding is half to even, as in the device's operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: candidates of the clipping search: fractions of the full range, at both ends or at each
_SHRINKS = tuple(1.0 - step / 40 for step in range(26))
_ENDS = tuple(1.0 - step / 16 for step in range(7))


@dataclass(frozen=True)
class Grid:
    """scale float32 ``[N, G]``, zero float32 ``[N, G]`` (integers; zeros where symmetric), group columns a group."""

    scale: torch.Tensor
    zero: torch.Tensor
    group: int
    low: int
    high: int

    def columns(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero of every column of ``[start, stop)``, each ``[N, stop - start]``."""
        index = torch.arange(start, stop) // self.group
        return self.scale[:, index], self.zero[:, index]

    def round(self, weight: torch.Tensor) -> torch.Tensor:
        """Codes of a whole weight ``[N, K]``, int8."""
        scale, zero = self.columns(0, weight.shape[1])
        return torch.round(weight / scale + zero).clamp_(self.low, self.high).to(torch.int8)

    def value(self, codes: torch.Tensor) -> torch.Tensor:
        """The float32 weight that codes ``[N, K]`` stand for."""
        scale, zero = self.columns(0, codes.shape[1])
        return (codes.float() - zero) * scale


def limits(bits: int, symmetric: bool) -> tuple[int, int]:
    """Smallest and largest code. Symmetric 8-bit codes leave out -128, which the sign trick of AVX2 cannot negate."""
    high = 2 ** (bits - 1) - 1
    return (-high if symmetric and bits == 8 else -high - 1), high


def fit(
    weight: torch.Tensor,
    bits: int,
    group: int = 0,
    symmetric: bool = True,
    importance: torch.Tensor | None = None,
    search: bool = True,
    scale_dtype: torch.dtype = torch.float32,
) -> Grid:
    """The grid of a weight ``[N, K]`` float32.

    Args:
        group: columns that share a scale; 0 for all of them.
        importance: weight of the squared error of each input column ``[K]``; None for equal ones.
        search: look for the clipping with the least error; otherwise the full range.
        scale_dtype: scales are rounded to this type first, so that storing them there costs nothing.

    Raises:
        ValueError: the group does not divide K.
    """
    rows, columns = weight.shape
    size = group or columns
    if columns % size:
        raise ValueError(f"groups of {size} do not divide {columns} input features")
    low, high = limits(bits, symmetric)
    grouped = weight.reshape(rows, columns // size, size)
    cost = None if importance is None else importance.reshape(1, columns // size, size)
    top, bottom = grouped.amax(-1).clamp_(min=0), grouped.amin(-1).clamp_(max=0)
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for above, below in _candidates(symmetric, search):
        scale, zero = _affine(top * above, bottom * below, low, high, symmetric, scale_dtype)
        codes = torch.round(grouped / scale[..., None] + zero[..., None]).clamp_(low, high)
        error = ((codes - zero[..., None]) * scale[..., None] - grouped).square_()
        error = (error if cost is None else error * cost).sum(-1)
        if best is None:
            best = error, scale, zero
        else:
            better = error < best[0]
            best = tuple(  # type: ignore[assignment]
                torch.where(better, new, old) for new, old in zip((error, scale, zero), best, strict=True)
            )
    assert best is not None
    return Grid(best[1], best[2], size, low, high)


def _candidates(symmetric: bool, search: bool) -> list[tuple[float, float]]:
    if not search:
        return [(1.0, 1.0)]
    if symmetric:
        return [(shrink, shrink) for shrink in _SHRINKS]
    return [(above, below) for above in _ENDS for below in _ENDS]


def _affine(
    top: torch.Tensor, bottom: torch.Tensor, low: int, high: int, symmetric: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    if symmetric:
        # 4 bits: the half step beyond the largest code is used on the negative side only, so share it
        reach = high + 0.5 if low != -high else high
        scale = torch.maximum(top, -bottom) / reach
    else:
        scale = (top - bottom) / (high - low)
    scale = scale.clamp_(min=1e-8).to(dtype).float()
    zero = torch.zeros_like(scale) if symmetric else torch.round(low - bottom / scale).clamp_(low, high)
    return scale, zero
