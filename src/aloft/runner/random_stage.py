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
        self.drawn: Draw | None = None  # from the source, for the rows without a seed
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
        self.draws[:, 0] = self.draws[:, 1] = 0
        self.draws[:, 2] = np.arange(len(self.draws))
        self.draws[self.seeded, 2] = 0
        self._draw()

    def advance(self) -> None:
        """Numbers for the token after that, of the same rows."""
        self.places += np.uint64(1)
        self._draw()

    def take_back(self) -> None:
        """The numbers are not used: the next step gets those without a seed, whatever it is."""
        if self.drawn is not None:
            self.source.put_back(self.drawn)
            self.drawn = None

    def _draw(self) -> None:
        self.drawn = None
        if self.shared:
            self.drawn = self.source.take()
            self.draws[:, 0], self.draws[:, 1] = self.drawn.seed, self.drawn.offset
        if len(self.seeded):
            self.draws[self.seeded, 0] = mix_all(self.seeds, self.places)
            self.draws[self.seeded, 1] = 0
