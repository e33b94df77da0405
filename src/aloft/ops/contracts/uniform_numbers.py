"""Contract of aloft::uniform_numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import layouts

_MASK = (1 << 64) - 1


def _mixed(state: int) -> int:
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _reference(draws: torch.Tensor) -> torch.Tensor:
    """numpy's Mersenne Twister, its state filled as the generators of the virtual NPU fill theirs."""
    numbers = []
    for seed, offset, place in draws.tolist():
        golden = 0x9E3779B97F4A7C15
        state = _mixed((seed + golden) & _MASK) ^ ((offset * 0xD1342543DE82EF95) & _MASK)
        words = [_mixed((state + (i + 1) * golden) & _MASK) >> 32 for i in range(624)]
        twister = np.random.MT19937()
        twister.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(words, dtype=np.uint32), "pos": 624},
        }
        word = int(twister.random_raw(place + 1)[-1])
        numbers.append([(word & 0xFFFFFF) * 2.0**-24])
    return torch.tensor(numbers, dtype=torch.float32).reshape(len(draws), 1)


def _cases() -> Iterator[Case]:
    yield Case("one", (torch.tensor([[7, 0, 0]]),), returns=(torch.float32,))
    yield Case("none", (torch.empty(0, 3, dtype=torch.int64),), returns=(torch.float32,))
    rows = [[5, 12, i] for i in range(700)]
    yield Case("all of one generator", (torch.tensor(rows),), returns=(torch.float32,))
    rows = [[2**62 + 5, 24, 3], [2**62 + 5, 24, 1], [-1, 0, 0], [2**62 + 5, 24, 650], [0, 2**33, 2]]
    yield Case("mixed, back and forth", (torch.tensor(rows),), returns=(torch.float32,))
    for label, view in layouts(torch.tensor(rows)):
        yield Case(label, (view,), returns=(torch.float32,))


def _bad() -> Iterator[Bad]:
    yield Bad("two columns", (torch.zeros(2, 2, dtype=torch.int64),), names="draws")
    yield Bad("one dimension", (torch.zeros(3, dtype=torch.int64),), names="draws")
    yield Bad("32 bits", (torch.zeros(2, 3, dtype=torch.int32),), names="draws")
    yield Bad("a negative place", (torch.tensor([[0, 0, -1]]),), names="draws")


CONTRACT = Contract(
    name="uniform_numbers",
    schemas=("aloft::uniform_numbers",),
    formula="for every row of draws int64 [B, 3] (seed, offset, place): what Tensor.uniform_ puts at that place with a "
    "generator of that seed and offset, as float32 [B, 1] in [0, 1).",
    dtypes=(torch.float32,),
    limits=("draws [B, 3] of any strides", "place >= 0"),
    tolerance={torch.float32: EXACT},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    optional=True,
    source="aloft: random sampling; CANN has random operators with generators of their own",
)
