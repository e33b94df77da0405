"""Tokens sampled but perhaps not yet on the host.

Under asynchronous scheduling a step is prepared while the previous one's tokens are still on the device. They are
written into the batch's token buffer as soon as their copy has arrived; until then the next step takes its input
from the device tensor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from vllm.v1.worker.gpu_input_batch import InputBatch

PLACEHOLDER = -1


@dataclass(slots=True)
class _Pending:
    device: torch.Tensor  # int32 [B, 1]
    host: np.ndarray  # int32 [B or more]
    ready: torch.Event | None
    rows: np.ndarray  # rows that got a token
    count: int  # rows of the batch
    read: Callable[[], None] | None  # to be told when the tokens have been read
    positions: np.ndarray  # where in the row it belongs
    req_ids: list[str]  # of all rows
    tracked: list[tuple[int, list[int], int]]  # row, output list, index of the placeholder
    moved: bool = False  # rows of the batch have changed since


class SampledTokens:
    """The last steps' tokens, oldest first."""

    def __init__(self, batch: InputBatch) -> None:
        self.batch = batch
        self.pending: deque[_Pending] = deque()
        self.lately: list[np.ndarray] = []  # tokens of every row, step by step, that are not in the batch yet

    def add(
        self,
        device: torch.Tensor,
        host: np.ndarray,
        ready: torch.Event | None,
        rows: np.ndarray,
        tracked: list[tuple[int, list[int]]],
        read: Callable[[], None] | None = None,
    ) -> None:
        """Notes a step's tokens: each of ``rows`` grows by one token whose value may be known later.

        device: int32 ``[B, 1]``. host: int32, valid once ``ready`` has happened; ``read`` is called when it was read.
        """
        assert not self.lately
        batch = self.batch
        count = batch.num_reqs
        lengths = batch.num_tokens_no_spec
        if len(rows) == count:
            positions = lengths[:count].copy()
            lengths[:count] += 1
        else:
            positions = lengths[rows]
            lengths[rows] += 1
        chosen = set(rows.tolist()) if tracked else ()
        holes = []
        for row, outputs in tracked:
            if row in chosen:
                holes.append((row, outputs, len(outputs)))
                outputs.append(PLACEHOLDER)
        req_ids = batch.req_ids.copy()
        self.pending.append(_Pending(device, host, ready, rows, count, read, positions, req_ids, holes))

    def add_known(self, values: np.ndarray, rows: np.ndarray, tracked: list[tuple[int, list[int]]]) -> None:
        """As ``add`` where the host knows the tokens, int32 ``[B]``, already; none are on their way."""
        assert not self.pending and not self.lately
        batch = self.batch
        lengths = batch.num_tokens_no_spec
        positions = lengths[rows]
        batch.token_ids_cpu[rows, positions] = values[rows]
        lengths[rows] = positions + 1
        if tracked:
            chosen = set(rows.tolist())
            for row, outputs in tracked:
                if row in chosen:
                    outputs.append(int(values[row]))

    def add_lately(self, values: np.ndarray) -> None:
        """As ``add_known`` with a token for every row; the batch learns of it when ``catch_up`` is called."""
        assert not self.pending
        self.lately.append(values)

    def catch_up(self) -> None:
        """Writes what ``add_lately`` noted into the batch."""
        if not self.lately:
            return
        values = np.stack(self.lately, axis=1)
        self.lately.clear()
        count, steps = values.shape
        lengths = self.batch.num_tokens_no_spec[:count]
        positions = lengths[:, None] + np.arange(steps)
        self.batch.token_ids_cpu[np.arange(count)[:, None], positions] = values
        lengths += steps

    def rows_changed(self) -> None:
        for entry in self.pending:
            entry.moved = True

    def settle(self, wait: bool = False) -> None:
        """Writes every token that has arrived into the batch; with ``wait``, all of them."""
        while self.pending:
            entry = self.pending[0]
            if entry.ready is not None and not entry.ready.query():
                if not wait and len(self.pending) == 1:
                    return
                entry.ready.synchronize()
            self.pending.popleft()
            self._write(entry)

    def _write(self, entry: _Pending) -> None:
        batch = self.batch
        tokens = entry.host
        if not entry.moved:
            every = len(entry.rows) == entry.count
            batch.token_ids_cpu[entry.rows, entry.positions] = tokens[: entry.count] if every else tokens[entry.rows]
        else:
            for row, position in zip(entry.rows.tolist(), entry.positions.tolist(), strict=True):
                now = batch.req_id_to_index.get(entry.req_ids[row])
                if now is not None and position < batch.num_tokens_no_spec[now]:
                    batch.token_ids_cpu[now, position] = tokens[row]
        for row, outputs, index in entry.tracked:
            if index < len(outputs) and outputs[index] == PLACEHOLDER:
                outputs[index] = int(tokens[row])
        if entry.read is not None:
            entry.read()

    def on_device(self) -> tuple[torch.Tensor, np.ndarray, np.ndarray] | None:
        """The tokens still on their way: device tensor, its rows, and the batch rows they belong to now.

        None when the host knows every token.
        """
        if not self.pending:
            return None
        entry = self.pending[-1]
        if not entry.moved:
            return entry.device, entry.rows, entry.rows
        pairs = [
            (row, now)
            for row in entry.rows.tolist()
            if (now := self.batch.req_id_to_index.get(entry.req_ids[row])) is not None
        ]
        if not pairs:
            return None
        source, target = np.array(pairs, dtype=np.int64).T
        return entry.device, source, target
