"""Drawing a token from probabilities with one random number a row.

vLLM divides every probability by noise of its own and takes the largest: a random number for each token of the
vocabulary, which at 32 rows took longer than the model. Here the number is looked up in the running sum of the
probabilities, first by blocks of the vocabulary, then inside the block: short sums, which also keep float32 exact
enough. The distribution is the same; what a seed yields is not.
"""

from __future__ import annotations

import functools

import torch

from aloft.ops import draw as draw_ops

_WIDEST = 512


def draw(probs: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """probs: float32 ``[B, V]``, not negative, no row all zero. generators: of the rows that have their own.

    Returns int64 ``[B]``; never a token of probability 0. A row's token depends on its probabilities and its number
    only, not on the rest of the batch.
    """
    rows, vocabulary = probs.shape
    return draw_ops.tokens(probs, None, numbers_for(rows, generators, probs.device), pieces(vocabulary))


def numbers_for(rows: int, generators: dict[int, torch.Generator], device: torch.device) -> torch.Tensor:
    """Random numbers in [0, 1), float32 ``[rows, 1]``; generators: of the rows that have their own."""
    numbers = torch.empty(rows, 1, dtype=torch.float32, device=device)
    if len(generators) != rows:
        numbers.uniform_()
    for row, generator in generators.items():
        numbers[row].uniform_(generator=generator)
    return numbers


def pieces(vocabulary: int) -> int:
    """Blocks of a vocabulary."""
    return vocabulary // block_width(vocabulary)


@functools.cache
def block_width(vocabulary: int) -> int:
    """The largest divisor of a vocabulary's size that is at most 512, or the size itself where that is below 16."""
    width = next(w for w in range(min(_WIDEST, vocabulary), 0, -1) if vocabulary % w == 0)
    return width if width >= 16 else vocabulary
