"""Drawing a token from probabilities with one random number a row.

vLLM divides every probability by noise of its own and takes the largest: a random number for each token of the
vocabulary, which at 32 rows took longer than the model. Here the number is looked up in the running sum of the
probabilities, first by blocks of the vocabulary, then inside the block: short sums, which also keep float32 exact
enough. The distribution is the same; what a seed yields is not.
"""

from __future__ import annotations

import functools

import torch

_WIDEST = 512


def draw(probs: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """probs: float32 ``[B, V]``, not negative, no row all zero. generators: of the rows that have their own.

    Returns int64 ``[B]``; never a token of probability 0. A row's token depends on its probabilities and its number
    only, not on the rest of the batch.
    """
    rows, vocabulary = probs.shape
    numbers = torch.empty(rows, 1, dtype=torch.float32, device=probs.device)
    if len(generators) != rows:
        numbers.uniform_()
    for row, generator in generators.items():
        numbers[row].uniform_(generator=generator)
    width = block_width(vocabulary)
    blocks = probs.reshape(rows, -1, width)
    block, left = _find(blocks.sum(-1), numbers, None)
    inside = blocks.gather(1, block.view(rows, 1, 1).expand(rows, 1, width)).squeeze(1)
    place, _ = _find(inside, numbers, left)
    return block * width + place


def _find(
    weights: torch.Tensor, numbers: torch.Tensor, target: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the running sum of ``weights`` ``[B, N]`` first exceeds the target, as int64 ``[B]``.

    target: ``[B, 1]``; None is the number times the sum. Also returns what is left of the target before that place.
    """
    running = weights.cumsum(-1)
    if target is None:
        target = numbers * running[:, -1:]
    # The sums are rounded: the target may lie beyond the last, and then the last place that has a weight is meant.
    last = (running < running[:, -1:]).sum(-1, keepdim=True)
    place = torch.minimum((running <= target).sum(-1, keepdim=True), last)
    before = running.gather(1, place) - weights.gather(1, place)
    return place.squeeze(1), (target - before).clamp_min(0)


@functools.cache
def block_width(vocabulary: int) -> int:
    """The largest divisor of a vocabulary's size that is at most 512, or the size itself where that is below 16."""
    width = next(w for w in range(min(_WIDEST, vocabulary), 0, -1) if vocabulary % w == 0)
    return width if width >= 16 else vocabulary
