"""What random sampling inside a closed graph reads: parameters of the rows, and where their numbers come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from vllm.v1.worker.gpu_input_batch import InputBatch

from aloft.ops.draw import Draw, Source
from aloft.runner.seeds import mix_all

WORDS = 9
"""Of a row."""


@dataclass(slots=True)
class RandomInputs:
    """Device tensors at addresses that never change."""

    draws: torch.Tensor  # int64 [size, 3]: seed, offset, place (aloft.ops.draw.uniform)
    temperature: torch.Tensor  # float32 [size]; 0 for padding
    top_k: torch.Tensor  # int32 [size]
    top_p: torch.Tensor  # float32 [size]

    @classmethod
    def within(cls, words: torch.Tensor, size: int) -> RandomInputs:
        """words: int32, ``WORDS * size`` of them, eight-byte aligned."""
        return cls(
            words[: 6 * size].view(torch.int64).view(size, 3),
            words[6 * size : 7 * size].view(torch.float32),
            words[7 * size : 8 * size],
            words[8 * size : 9 * size].view(torch.float32),
        )


class RandomStage:
    """The same places in host memory."""

    def __init__(self, words: np.ndarray, size: int, source: Source) -> None:
        """words: int32, as for ``RandomInputs.within``. source: of seed and offset for the rows without a seed of
        their own."""
        self.draws = words[: 6 * size].view(np.int64).reshape(size, 3)
        self.temperature = words[6 * size : 7 * size].view(np.float32)
        self.top_k = words[7 * size : 8 * size]
        self.top_p = words[8 * size : 9 * size].view(np.float32)
        self.source = source
        self.expected: Draw | None = None  # what rows without a seed have been given ahead of the step
        self.shared = 0  # rows without a seed
        self.seeded = np.empty(0, dtype=np.int64)  # rows with one
        self.seeds = np.empty(0, dtype=np.uint64)
        self.places = np.empty(0, dtype=np.uint64)  # of their next token in their output

    def fill(self, batch: InputBatch, seeds: dict[str, int]) -> None:
        """Parameters and numbers of the next token of every row. seeds: by request id."""
        count = batch.num_reqs
        self.temperature[:count] = batch.temperature_cpu[:count]
        self.temperature[count:] = 0
        self.top_k[:count] = batch.top_k_cpu[:count]
        self.top_p[:count] = batch.top_p_cpu[:count]
        rows = sorted(batch.generators)
        self.seeded = np.array(rows, dtype=np.int64)
        self.seeds = np.array([seeds[batch.req_ids[row]] & (2**64 - 1) for row in rows], dtype=np.uint64)
        done = batch.num_tokens_no_spec[self.seeded] - batch.num_prompt_tokens[self.seeded]
        self.places = done.astype(np.uint64)
        self.shared = count - len(rows)
        self.expected = None
        self.draws[:, 0] = self.draws[:, 1] = 0
        self.draws[:, 2] = np.arange(len(self.draws))
        self.draws[self.seeded, 2] = 0
        self._write(self.source.take() if self.shared else None)

    def advance(self, ahead: bool = False) -> None:
        """Numbers for the token after that, of the same rows.

        ahead: before the step is asked for. ``confirm`` is to be called then, and until then the source stays as it is:
        whoever draws from it in between finds it as if the step had not begun.
        """
        self.places += np.uint64(1)
        self.expected = self.source.next() if ahead and self.shared else None
        self._write(self.expected or (self.source.take() if self.shared else None))

    def confirm(self) -> Draw | None:
        """The step has been asked for: takes its numbers. Returns those it should have had instead, if others drew
        from the source or seeded it after ``advance``: ``correct`` is to be called before it runs again."""
        expected, self.expected = self.expected, None
        if expected is None:
            return None
        taken = self.source.take()
        return None if taken == expected else taken

    def correct(self, taken: Draw) -> None:
        """Nobody reads here now."""
        self._write(taken)

    def _write(self, shared: Draw | None) -> None:
        if shared is not None:
            self.draws[:, 0], self.draws[:, 1] = shared
        if len(self.seeded):
            self.draws[self.seeded, 0] = mix_all(self.seeds, self.places)
            self.draws[self.seeded, 1] = 0
