"""Seeded sampling that depends on nothing but the seed and the position in the output.

A request with a seed draws its noise from a generator that is re-seeded for every token, from (seed, number of
tokens generated so far). Its text is therefore the same whether its prompt was split into chunks, whether it was
preempted, what else was in the batch, and whether a token sampled too early was thrown away.
"""

from __future__ import annotations

import numpy as np
import torch

_MASK = (1 << 64) - 1


def mix(seed: int, position: int) -> int:
    """A 63-bit seed from a request's seed and an output position (the SplitMix64 finaliser)."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


def mix_all(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """``mix`` of many: uint64 ``[N]`` each, int64 ``[N]`` back."""
    with np.errstate(over="ignore"):
        z = seeds + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def reseed(generator: torch.Generator, seed: int, position: int) -> None:
    """Prepares a generator for the token at ``position`` of the output."""
    generator.manual_seed(mix(seed, position))
