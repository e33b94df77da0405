"""Orthogonal matrices that spread outliers, and folding them into a model's weights (QuaRot, SpinQuant)."""

from __future__ import annotations

import functools
import math

import torch

# Orders of Paley's construction for primes q = 3 mod 4: a Hadamard matrix of order q + 1.
_PALEY = (12, 20, 24, 44, 60)


@functools.lru_cache(maxsize=32)
def hadamard(order: int) -> torch.Tensor | None:
    """A Hadamard matrix of the order (entries 1 and -1, float64), or None where none is constructed here."""
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if order == 2:
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    if order % 4:
        return None
    if order in _PALEY:
        return _paley(order - 1)
    for factor in (2, *_PALEY):
        if order % factor == 0 and (rest := hadamard(order // factor)) is not None:
            part = hadamard(factor)
            assert part is not None
            return torch.kron(part, rest)
    return None


def orthogonal(order: int, seed: int) -> torch.Tensor:
    """A random rotation ``[order, order]``, float64: Hadamard with random signs where there is one, else QR."""
    generator = torch.Generator().manual_seed(seed)
    base = hadamard(order)
    if base is None:
        q, r = torch.linalg.qr(torch.randn(order, order, generator=generator, dtype=torch.float64))
        return q * torch.sign(torch.diagonal(r))
    signs = torch.randint(0, 2, (order,), generator=generator).double() * 2 - 1
    return base * signs[:, None] / math.sqrt(order)


def _paley(prime: int) -> torch.Tensor:
    squares = {x * x % prime for x in range(1, prime)}
    character = [0 if d == 0 else (1 if d in squares else -1) for d in range(prime)]
    jacobsthal = torch.tensor(
        [[character[(i - j) % prime] for j in range(prime)] for i in range(prime)], dtype=torch.float64
    )
    skew = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    skew[0, 1:] = 1
    skew[1:, 0] = -1
    skew[1:, 1:] = jacobsthal
    return skew + torch.eye(prime + 1, dtype=torch.float64)
