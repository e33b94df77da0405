"""Contract of aloft::draw_tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts


def _find(weights: np.ndarray, target: np.float32 | None, number: np.float32) -> tuple[int, np.float32]:
    """One row: the sums of numpy, in float64, one place after the other."""
    running = np.cumsum(weights, dtype=np.float64).astype(np.float32)
    if target is None:
        target = number * running[-1]
    beyond = np.flatnonzero(running > target)
    place = min(int(beyond[0]) if len(beyond) else len(running), int(np.flatnonzero(running == running[-1])[0]))
    return place, max(target - (running[place] - weights[place]), np.float32(0))


def reference(probs: torch.Tensor, sums: torch.Tensor | None, numbers: torch.Tensor, pieces: int = 0) -> torch.Tensor:
    if sums is None:
        sums = probs.reshape(len(probs), pieces, probs.shape[1] // pieces).double().sum(-1).float()
    found = []
    for row, parts, number in zip(probs.numpy(), sums.numpy(), numbers.numpy()[:, 0], strict=True):
        width = len(row) // len(parts)
        piece, left = _find(parts, None, number)
        found.append(piece * width + _find(row[piece * width : (piece + 1) * width], left, number)[0])
    return torch.tensor(found, dtype=torch.int64)


def _operands(make: Maker, rows: int, vocabulary: int, pieces: int, sparse: bool = False) -> tuple[torch.Tensor, ...]:
    probs = make.normal((rows, vocabulary), scale=3).softmax(-1)
    if sparse:
        probs = torch.where(make.bools(probs.shape, 0.1), probs, 0)
        probs[:, ::7] = 1e-3  # no row without any
    numbers = make.uniform((rows, 1))
    return probs, probs.reshape(rows, pieces, vocabulary // pieces).sum(-1), numbers


def _cases() -> Iterator[Case]:
    make = Maker("draw_tokens")
    for rows, vocabulary, pieces in ((1, 1, 1), (1, 49152, 96), (33, 640, 5), (4, 1009, 1), (7, 24, 24), (0, 8, 2)):
        yield Case(f"[{rows}, {vocabulary}] in {pieces}", _operands(make, rows, vocabulary, pieces))
    for end in (0.0, 1 - 2.0**-24):
        probs, sums, numbers = _operands(make, 40, 512, 4, sparse=True)
        yield Case(f"many zeros, number {end}", (probs, sums, torch.full_like(numbers, end)))
    yield Case("many zeros", _operands(make, 40, 512, 4, sparse=True))
    probs, _, numbers = _operands(make, 33, 640, 5)
    yield Case("sums of its own", (probs, None, numbers, 5))
    probs, sums, numbers = _operands(make, 5, 40, 4)
    for label, view in layouts(probs):
        yield Case(label, (view, sums, numbers))


def _bad() -> Iterator[Bad]:
    make = Maker("draw_tokens, bad")
    probs, sums, numbers = _operands(make, 3, 12, 4)
    yield Bad("one dimension", (probs[0], sums, numbers), names="probs")
    yield Bad("half precision", (probs.half(), sums, numbers), names="probs")
    yield Bad("no vocabulary", (probs[:, :0], sums, numbers), names="probs")
    yield Bad("pieces that do not divide it", (probs[:, :10], sums, numbers), names="sums")
    yield Bad("sums of other rows", (probs, sums[:2], numbers), names="sums")
    yield Bad("integer sums", (probs, sums.long(), numbers), names="sums")
    yield Bad("neither sums nor pieces", (probs, None, numbers), names="pieces")
    yield Bad("two numbers a row", (probs, sums, numbers.expand(3, 2)), names="numbers")


CONTRACT = Contract(
    name="draw_tokens",
    schemas=("aloft::draw_tokens",),
    formula="the place where numbers[b] times the sum of row b falls in the running sum of probs [B, V], as int64 [B], "
    "found among the N pieces of V / N columns by sums [B, N] (made where absent, in float64), then in one of them.",
    dtypes=(torch.float32,),
    limits=("probs [B, V] of any strides, at least one column", "N divides V; `pieces` is N where sums are absent"),
    tolerance={},
    reference=reference,
    cases=_cases,
    bad=_bad,
    optional=True,
    source="aloft: random sampling; twenty operators on CANN",
)
