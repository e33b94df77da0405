"""Deterministic operands for contract cases: values from a seeded generator, and layouts that are not contiguous."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch

Shape = Sequence[int]


class Maker:
    """Makes CPU tensors; two makers of the same name make the same tensors.

    Every call draws new values. Floating values are drawn in float32 and rounded to `dtype`.
    """

    def __init__(self, name: str) -> None:
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(
        self, shape: Shape, dtype: torch.dtype = torch.float32, scale: float = 1.0, mean: float = 0.0
    ) -> torch.Tensor:
        """Normally distributed values (rounded to integers for integer dtypes)."""
        return (torch.randn(tuple(shape), generator=self.generator) * scale + mean).to(dtype)

    def uniform(
        self, shape: Shape, dtype: torch.dtype = torch.float32, low: float = 0.0, high: float = 1.0
    ) -> torch.Tensor:
        """Uniformly distributed values in [low, high)."""
        return (torch.rand(tuple(shape), generator=self.generator) * (high - low) + low).to(dtype)

    def integers(self, shape: Shape, low: int, high: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, tuple(shape), generator=self.generator).to(dtype)

    def bools(self, shape: Shape, share: float = 0.5) -> torch.Tensor:
        """True with probability `share`."""
        return torch.rand(tuple(shape), generator=self.generator) < share

    def permutation(self, n: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """A permutation of 0..n-1."""
        return torch.randperm(n, generator=self.generator).to(dtype)

    def distinct(self, shape: Shape, dtype: torch.dtype = torch.float32, dim: int = -1) -> torch.Tensor:
        """Values without ties along `dim`, exactly representable in `dtype` (at most 256 per row for bfloat16)."""
        values = torch.rand(tuple(shape), generator=self.generator).argsort(dim)
        n = values.size(dim) if values.dim() else 1
        limit = {torch.bfloat16: 256, torch.float16: 2048}.get(dtype, 1 << 24)
        if n > limit:
            raise ValueError(f"{dtype} holds {limit} distinct integers, dim {dim} of {tuple(shape)} needs {n}")
        return (values - n // 2).to(dtype)


def sliced(t: torch.Tensor, step: int = 2) -> torch.Tensor:
    """The same values, last dimension with stride `step` (gaps hold zeros)."""
    wide = torch.zeros(*t.shape[:-1], t.shape[-1] * step, dtype=t.dtype)
    view = wide[..., ::step]
    view.copy_(t)
    return view


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The same values and shape, last two dimensions laid out column-major."""
    return t.mT.contiguous().mT


def shifted(t: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """The same values, contiguous, starting `elements` into the storage (an unaligned address)."""
    flat = torch.zeros(t.numel() + elements, dtype=t.dtype)
    view = flat[elements:].view(t.shape)
    view.copy_(t)
    return view


def row_padded(t: torch.Tensor, pad: int = 3) -> torch.Tensor:
    """The same values, rows separated by `pad` elements."""
    wide = torch.zeros(*t.shape[:-1], t.shape[-1] + pad, dtype=t.dtype)
    view = wide[..., : t.shape[-1]]
    view.copy_(t)
    return view


def layouts(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """(label, view) for every non-contiguous layout that suits `t`."""
    if t.numel() == 0:
        return
    yield "shifted", shifted(t)
    if t.dim():
        yield "strided", sliced(t)
        yield "row-padded", row_padded(t)
    if t.dim() >= 2:
        yield "column-major", transposed(t)
