"""Random sampling in one operator where the runtime has it: ``aloft::draw_tokens``, the tokens that numbers pick,
``aloft::sample_tokens``, the same from logits, and ``aloft::uniform_numbers``, the numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch_npu import npu


def native() -> bool:
    """Whether the runtime samples from logits in one operator."""
    return hasattr(torch.ops.aloft, "sample_tokens")


def tokens(probs: torch.Tensor, sums: torch.Tensor | None, numbers: torch.Tensor, pieces: int = 0) -> torch.Tensor:
    """int64 ``[B]``: where ``numbers`` times the sum of a row falls in the running sum of its probabilities.

    probs: float32 ``[B, V]``, not negative. sums: float32 ``[B, N]``, of the N equal pieces of every row; None: those
    of ``pieces`` pieces, summed in float64 where the runtime can. numbers: float32 ``[B, 1]`` in [0, 1). Looked for
    among the pieces first, then in one; sums are kept in float64 and rounded to float32 at each place. Never a place of
    probability 0 unless all of its piece are.
    """
    operator = getattr(torch.ops.aloft, "draw_tokens", None)
    if operator is not None and probs.device.type == "npu":
        return operator.default(probs, sums, numbers, pieces)
    return composite(probs, sums, numbers, pieces)


def composite(probs: torch.Tensor, sums: torch.Tensor | None, numbers: torch.Tensor, pieces: int = 0) -> torch.Tensor:
    """The same in operators every runtime has (on CANN their cumulative sums may round otherwise)."""
    if sums is None:
        sums = probs.reshape(len(probs), pieces, probs.shape[1] // pieces).sum(-1)
    rows, pieces = sums.shape
    width = probs.shape[1] // pieces
    piece, left = _find(sums, numbers, None)
    inside = probs.reshape(rows, pieces, width).gather(1, piece.view(rows, 1, 1).expand(rows, 1, width)).squeeze(1)
    place, _ = _find(inside, numbers, left)
    return piece * width + place


def _find(
    weights: torch.Tensor, numbers: torch.Tensor, target: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the running sum of ``weights`` ``[B, N]`` first exceeds the target, as int64 ``[B]``.

    target: ``[B]``; None is the number times the sum. Also returns what is left of the target before that place.
    """
    running = weights.cumsum(-1)
    target = numbers * running[:, -1:] if target is None else target.unsqueeze(-1)
    # The sums are rounded: the target may lie beyond the last, and then the last place that has a weight is meant.
    last = (running < running[:, -1:]).sum(-1, keepdim=True)
    place = torch.minimum((running <= target).sum(-1, keepdim=True), last)
    before = running.gather(1, place) - weights.gather(1, place)
    return place.squeeze(1), (target - before).clamp_min(0).squeeze(1)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    numbers: torch.Tensor,
    pieces: int,
) -> torch.Tensor:
    """int32 ``[B, 1]``: a token for every row of logits ``[B, V]``, where ``native()``.

    temperature: float32 ``[B]``; below 1e-5 it is the arg-max. top_k: int32 ``[B]``, off at 0 and from V. top_p:
    float32 ``[B]``, off from 1. numbers: float32 ``[B, 1]`` in [0, 1). What division, ``npu_top_k_top_p``, softmax and
    ``tokens`` give one after the other.
    """
    return torch.ops.aloft.sample_tokens.default(logits, temperature, top_k, top_p, numbers, pieces)


def uniform(draws: torch.Tensor) -> torch.Tensor:
    """float32 ``[B, 1]`` in [0, 1), where ``native()``.

    draws: int64 ``[B, 3]``, seed and offset of a generator, and which of the numbers that ``Tensor.uniform_`` would
    take from it.
    """
    return torch.ops.aloft.uniform_numbers.default(draws)


class Draw(NamedTuple):
    """Seed and offset of a generator, for one operator."""

    seed: int  # as int64
    offset: int


class Source:
    """The default generator of an NPU, where ``native()``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def next(self) -> Draw:
        """What ``take`` would give now."""
        index = self.device.index
        generator = npu.default_generators[npu.current_device() if index is None else index]
        seed = generator.initial_seed()
        return Draw(seed if seed < 2**63 else seed - 2**64, generator.get_offset())

    def take(self) -> Draw:
        """For one operator; the generator is advanced."""
        return Draw(*torch.ops.aloft.take_draw(self.device))
