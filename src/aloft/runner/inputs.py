"""Inputs of a step: built on the host with numpy, sent to the device in one copy.

Everything of integer type a step needs lies in one staging buffer: positions, then token ids, slots of every KV
cache group, query offsets, sequence lengths and the rows whose logits are wanted. Two buffers alternate, so that
the next step can be prepared while a copy is under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch_npu import npu
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.gpu_input_batch import InputBatch

from aloft.runner.sampled import SampledTokens


@dataclass(slots=True)
class StepInputs:
    """Device tensors and host lengths of one step over B rows and T tokens."""

    num_reqs: int
    num_tokens: int
    positions: torch.Tensor  # int64 [T]
    input_ids: torch.Tensor  # int32 [T]
    logits_rows: torch.Tensor | None  # int32 [B], last token of every row; None when T == B
    finishing: np.ndarray  # bool [B]: the row's known tokens end with this step, so it samples
    offsets: np.ndarray  # int32 [B + 1], start of every row
    common: list[CommonAttentionMetadata]  # one per KV cache group


class _Stage:
    """A pinned host buffer, its device twin, and the event that says the copy has left it."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        self.host = torch.empty(num_words, dtype=torch.int32, pin_memory=True)
        self.numpy = self.host.numpy()
        self.device = torch.empty(num_words, dtype=torch.int32, device=device)
        self.sent: torch.Event | None = None


class InputBuilder:
    """Turns batch rows and scheduled token counts into StepInputs."""

    def __init__(self, batch: InputBatch, max_num_tokens: int, device: torch.device) -> None:
        self.batch = batch
        self.device = device
        self.tables = batch.block_table.block_tables
        max_reqs = batch.max_num_reqs
        words = (3 + len(self.tables)) * max_num_tokens + 3 * (max_reqs + 1)
        self.stages = (_Stage(words, device), _Stage(words, device))
        self.turn = 0
        self.arange = np.arange(max(max_num_tokens, max_reqs) + 1, dtype=np.int32)

    def build(self, scheduled: np.ndarray, sampled: SampledTokens, blocks_changed: bool) -> StepInputs:
        """scheduled: int32 ``[B]``, tokens of every row in this step, in batch order."""
        batch = self.batch
        count = len(scheduled)
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(scheduled, out=offsets[1:])
        total = int(offsets[-1])
        computed = batch.num_computed_tokens_cpu[:count]
        lengths = computed + scheduled
        if total == count:
            rows, positions = self.arange[:count], computed
        else:
            rows = np.repeat(self.arange[:count], scheduled)
            positions = self.arange[:total] - offsets[rows] + computed[rows]

        stage = self._next_stage()
        cut = _Cutter(stage)
        positions_device = cut.take64(positions)
        ids_host, input_ids = cut.take(batch.token_ids_cpu[rows, positions])
        slots = [cut.take(self._slots(table, rows, positions))[1] for table in self.tables]
        starts_host, starts = cut.take(offsets)
        lengths_host, lengths_device = cut.take(lengths)
        logits_rows = None if total == count else cut.take(offsets[1:] - 1)[1]
        del ids_host
        cut.send()
        if blocks_changed:
            for table in self.tables:
                table.commit_block_table(count)
        self._take_from_device(input_ids, sampled, offsets, lengths)

        max_query, max_length = int(scheduled.max()), int(lengths.max())
        common = [
            CommonAttentionMetadata(
                query_start_loc=starts,
                query_start_loc_cpu=starts_host,
                seq_lens=lengths_device,
                num_reqs=count,
                num_actual_tokens=total,
                max_query_len=max_query,
                max_seq_len=max_length,
                block_table_tensor=table.block_table.gpu[:count],
                slot_mapping=slot,
                seq_lens_cpu_upper_bound=lengths_host,
                positions=positions_device,
            )
            for table, slot in zip(self.tables, slots, strict=True)
        ]
        return StepInputs(
            num_reqs=count,
            num_tokens=total,
            positions=positions_device,
            input_ids=input_ids,
            logits_rows=logits_rows,
            finishing=lengths >= batch.num_tokens_no_spec[:count],
            offsets=offsets,
            common=common,
        )

    def _slots(self, table: object, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        size: int = table.block_size  # type: ignore[attr-defined]
        blocks = table.block_table.np[rows, positions // size]  # type: ignore[attr-defined]
        return blocks * size + positions % size

    def _next_stage(self) -> _Stage:
        self.turn ^= 1
        stage = self.stages[self.turn]
        if stage.sent is not None:
            stage.sent.synchronize()
        return stage

    def _take_from_device(
        self, input_ids: torch.Tensor, sampled: SampledTokens, offsets: np.ndarray, lengths: np.ndarray
    ) -> None:
        """Overwrites input ids whose value only the device knows: the last known token of a row, if scheduled now."""
        newest = sampled.on_device()
        if newest is None:
            return
        tokens, source, target = newest
        fed = lengths[target] >= self.batch.num_tokens_no_spec[target]
        if not fed.any():
            return
        places = offsets[target + 1][fed] - 1
        chosen = source[fed]
        in_order = len(chosen) == len(tokens) == len(input_ids) and np.array_equal(chosen, self.arange[: len(chosen)])
        if in_order and np.array_equal(places, chosen):
            input_ids.copy_(tokens[:, 0])
            return
        index = torch.from_numpy(np.stack((places, chosen)).astype(np.int64)).to(self.device)
        input_ids.index_copy_(0, index[0], tokens[:, 0].index_select(0, index[1]))


class _Cutter:
    """Cuts one step's arrays out of a stage, in order, and sends the used part."""

    def __init__(self, stage: _Stage) -> None:
        self.stage = stage
        self.used = 0

    def take(self, values: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.used, self.used + len(values)
        self.stage.numpy[start:end] = values
        self.used = end
        return self.stage.host[start:end], self.stage.device[start:end]

    def take64(self, values: np.ndarray) -> torch.Tensor:
        assert self.used % 2 == 0, "64-bit values come first"
        start, end = self.used, self.used + 2 * len(values)
        self.stage.numpy[start:end].view(np.int64)[:] = values
        self.used = end
        return self.stage.device[start:end].view(torch.int64)

    def send(self) -> None:
        stage = self.stage
        stage.device[: self.used].copy_(stage.host[: self.used], non_blocking=True)
        if stage.sent is None:
            stage.sent = npu.Event()
        stage.sent.record()
