"""aloft::draw_tokens: the tokens that random numbers pick, one operator where the runtime has it."""

from __future__ import annotations

import torch


def tokens(probs: torch.Tensor, sums: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """int64 ``[B]``: where ``numbers`` times the sum of a row falls in the running sum of its probabilities.

    probs: float32 ``[B, V]``, not negative. sums: float32 ``[B, N]``, of the N equal pieces of every row. numbers:
    float32 ``[B, 1]`` in [0, 1). Looked for among the pieces first, then in one; sums are kept in float64 and rounded
    to float32 at each place. Never a place of probability 0 unless all of its piece are.
    """
    operator = getattr(torch.ops.aloft, "draw_tokens", None)
    if operator is not None and probs.device.type == "npu":
        return operator.default(probs, sums, numbers)
    return composite(probs, sums, numbers)


def composite(probs: torch.Tensor, sums: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The same in operators every runtime has (on CANN their cumulative sums may round otherwise)."""
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
