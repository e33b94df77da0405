"""Inputs of a step: built on the host with numpy, sent to the device in one copy.

Everything of integer type a step needs lies in one buffer: positions, then token ids, slots of every KV cache group,
query offsets, sequence lengths and the rows whose logits are wanted. On the host two buffers alternate, so that the
next step can be prepared while a copy is under way; on the device there is one, because the stream keeps the order.
Captured decode steps read it at fixed places (``DecodeInputs``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch_npu import npu
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.gpu_input_batch import InputBatch

from aloft.ops import draw as draw_ops
from aloft.runner import random_stage
from aloft.runner.random_stage import RandomInputs, RandomStage
from aloft.runner.sampled import SampledTokens


@dataclass(slots=True)
class Part:
    """The F of a step's B rows that sample, where some do not because their prompt goes on."""

    rows: torch.Tensor  # int32 [F], in the batch
    places: torch.Tensor  # int32 [B], of a row of the batch among them; 0 for one that does not sample


@dataclass(slots=True)
class StepInputs:
    """Device tensors and host lengths of one step over B rows and T tokens."""

    num_reqs: int
    num_tokens: int
    positions: torch.Tensor  # int64 [T]
    input_ids: torch.Tensor  # int32 [T]
    logits_rows: torch.Tensor | None  # int32 [F], last token of every row that samples; None when F == T
    finishing: np.ndarray  # bool [B]: the row's known tokens end with this step, so it samples
    all_finishing: bool
    offsets: np.ndarray  # int32 [B + 1], start of every row
    common: list[CommonAttentionMetadata]  # one per KV cache group; empty for a captured step
    lengths: np.ndarray | None = None  # int32, of a captured step: tokens in the cache, padding included
    part: Part | None = None  # whose logits an eager step computes; None: those of every row


@dataclass(slots=True)
class DecodeInputs:
    """What a captured decode step of ``size`` rows reads, at addresses that never change."""

    size: int
    words: torch.Tensor  # int32, all of the below in one piece
    positions: torch.Tensor  # int64 [size]
    input_ids: torch.Tensor  # int32 [size]
    lengths: torch.Tensor  # int32 [size], tokens in the cache, this step's included; 0 for padding
    slots: list[torch.Tensor]  # int32 [size] of every KV cache group
    block_tables: list[torch.Tensor]  # int32 [size, max_blocks] of every KV cache group
    random_words: torch.Tensor  # int32, those of `words` and of `random`
    random: RandomInputs  # what a step reads that samples at random


class DecodeStage:
    """The same places in pinned host memory, and how they change from one step to the next."""

    def __init__(self, words: torch.Tensor, size: int, num_groups: int) -> None:
        """words: int32, pinned; its beginning is used."""
        self.words = words[: (4 + num_groups) * size]
        self.numpy = numpy = self.words.numpy()
        self.positions = numpy[: 2 * size].view(np.int64)
        self.input_ids = numpy[2 * size : 3 * size]
        self.lengths = numpy[3 * size : 4 * size]
        self.slots = [numpy[(4 + group) * size : (5 + group) * size] for group in range(num_groups)]
        self.random: RandomStage | None = None  # of a step that samples at random
        self.steps_left = 0  # steps that only add `increment`: until a row begins a block
        self.count = 0
        self.increment = np.zeros_like(numpy)

    def plan(self, count: int, block_sizes: list[int]) -> None:
        """Prepares for the steps after this one, of the same ``count`` rows."""
        size = len(self.positions)
        self.count = count
        left = [block_size - 1 - self.positions[:count] % block_size for block_size in block_sizes]
        self.steps_left = int(np.min(left)) if left else 0
        self.increment[:] = 0
        self.increment[: 2 * size].view(np.int64)[:count] = 1
        for start in range(3 * size, len(self.increment), size):  # lengths and slots
            self.increment[start : start + count] = 1

    def advance(self, token_ids: np.ndarray, ahead: bool = False) -> bool:
        """Makes the inputs those of the next step, in which every row computes ``token_ids``, int32 ``[B]``.

        False: a row begins a block, so that they have to be built. ahead: as for ``RandomStage.advance``.
        """
        if not self.steps_left:
            return False
        self.steps_left -= 1
        np.add(self.numpy, self.increment, out=self.numpy)
        self.input_ids[: self.count] = token_ids
        if self.random is not None:
            self.random.advance(ahead)
        return True


class _Stage:
    """A pinned host buffer, and the event that says the copy has left it."""

    def __init__(self, num_words: int) -> None:
        self.host = torch.empty(num_words, dtype=torch.int32, pin_memory=True)
        self.numpy = self.host.numpy()
        self.sent = npu.Event()
        self.stream = npu.current_stream()
        self.used = False
        self.decode = functools.cache(functools.partial(DecodeStage, self.host))

    def wait(self) -> None:
        """Until the last copy has left the buffer."""
        if self.used:
            self.sent.synchronize()

    def record(self) -> None:
        self.used = True
        self.sent.record(self.stream)


class InputBuilder:
    """Turns batch rows and scheduled token counts into StepInputs."""

    def __init__(
        self, batch: InputBatch, max_num_tokens: int, device: torch.device, padding_writes: bool = True
    ) -> None:
        """padding_writes: the padding of a captured step has slots, in block 0; else they are -1."""
        self.batch = batch
        self.padding_writes = padding_writes
        self.device = device
        self.tables = batch.block_table.block_tables
        max_reqs = batch.max_num_reqs
        words = (3 + len(self.tables)) * max(max_num_tokens, max_reqs) + (4 + random_stage.WORDS) * (max_reqs + 1)
        self.words = torch.empty(words, dtype=torch.int32, device=device)
        self.stages = (_Stage(words), _Stage(words))
        self.turn = 0
        self.tables_on_their_way: _Stage | None = None
        self.decode_inputs = functools.cache(self._decode_inputs)
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
        cut = _Cutter(stage, self.words)
        positions_device = cut.take64(positions)
        ids_host, input_ids = cut.take(batch.token_ids_cpu[rows, positions])
        slots = [cut.take(self._slots(table, rows, positions))[1] for table in self.tables]
        starts_host, starts = cut.take(offsets)
        lengths_host, lengths_device = cut.take(lengths)
        finishing = lengths >= batch.num_tokens_no_spec[:count]
        all_finishing = bool(finishing.all())
        part, last = None, offsets[1:] - 1
        if not all_finishing:
            places = np.cumsum(finishing, dtype=np.int32) - 1
            places[~finishing] = 0
            part = Part(cut.take(np.flatnonzero(finishing))[1], cut.take(places)[1])
            last = last[finishing]
        logits_rows = None if total == count and all_finishing else cut.take(last)[1]
        del ids_host
        cut.send()
        self._sent(stage, blocks_changed)
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
            finishing=finishing,
            all_finishing=all_finishing,
            offsets=offsets,
            common=common,
            part=part,
        )

    def dummy(self, count: int) -> tuple[torch.Tensor, torch.Tensor, list[CommonAttentionMetadata]]:
        """Token ids, positions and metadata of one sequence of ``count`` tokens in block 0, which nobody owns.

        count: at most the block size.
        """
        positions = torch.arange(count, dtype=torch.int64, device=self.device)
        starts, length = torch.tensor([0, count], dtype=torch.int32), torch.tensor([count], dtype=torch.int32)
        common = [
            CommonAttentionMetadata(
                query_start_loc=starts.to(self.device),
                query_start_loc_cpu=starts,
                seq_lens=length.to(self.device),
                num_reqs=1,
                num_actual_tokens=count,
                max_query_len=count,
                max_seq_len=count,
                block_table_tensor=torch.zeros_like(table.block_table.gpu[:1]),
                slot_mapping=positions.int(),
                seq_lens_cpu_upper_bound=length,
                positions=positions,
            )
            for table in self.tables
        ]
        return torch.zeros_like(positions, dtype=torch.int32), positions, common

    def build_decode(self, size: int, sampled: SampledTokens, blocks_changed: bool) -> StepInputs:
        """The inputs of a step that computes one token of every row, padded to a captured step of ``size`` rows.

        Padding attends to nothing and writes into block 0, which vLLM gives to nobody, or nowhere: block 0 may be read
        in place of tokens that are no longer kept, and must not be bytes of another type then.
        """
        inputs = self.decode_inputs(size)
        stage = self._next_stage()
        host = stage.decode(size, len(self.tables))
        made = self._fill(host, inputs)
        inputs.words.copy_(host.words, non_blocking=True)
        self._sent(stage, blocks_changed)
        self._take_from_device(inputs.input_ids, sampled, made.offsets, host.lengths[: made.num_reqs])
        return made

    def closed_stage(self, size: int) -> DecodeStage:
        """Host memory from which a captured step of ``size`` rows fetches its inputs itself."""
        groups = len(self.tables)
        return DecodeStage(torch.empty((4 + groups) * size, dtype=torch.int32, pin_memory=True), size, groups)

    def random_stage(self, size: int) -> DecodeStage:
        """The same with what random sampling reads."""
        groups, start = len(self.tables), self._random_words(size)
        words = torch.empty(start + random_stage.WORDS * size, dtype=torch.int32, pin_memory=True)
        made = DecodeStage(words, size, groups)
        made.words = words
        made.random = RandomStage(words.numpy()[start:], size, draw_ops.Source(self.device))
        return made

    def build_closed(self, host: DecodeStage, blocks_changed: bool, seeds: dict[str, int] | None = None) -> StepInputs:
        """As ``build_decode`` for a step that fetches its inputs from ``host``: nobody reads there now, and the host
        knows every token. seeds: of requests that have one."""
        made = self._fill(host, self.decode_inputs(len(host.positions)))
        if host.random is not None:
            host.random.fill(self.batch, seeds or {})
        host.plan(made.num_reqs, [table.block_size for table in self.tables])
        if blocks_changed:
            stage = self._next_stage()
            self._sent(stage, blocks_changed)
        return made

    def _fill(self, host: DecodeStage, inputs: DecodeInputs) -> StepInputs:
        """Writes a decode step's inputs; tokens the host does not know are missing."""
        batch = self.batch
        count, size = batch.num_reqs, inputs.size
        rows, computed = self.arange[:count], batch.num_computed_tokens_cpu[:count]
        host.positions[:count] = computed
        host.input_ids[:count] = batch.token_ids_cpu[rows, computed]
        lengths = host.lengths[:count]
        np.add(computed, 1, out=lengths)
        for table, slots in zip(self.tables, host.slots, strict=True):
            slots[:count] = self._slots(table, rows, computed)
        if count < size:
            host.positions[count:] = 0
            host.input_ids[count:] = 0
            host.lengths[count:] = 0
            for slots in host.slots:
                slots[count:] = self.arange[: size - count] if self.padding_writes else -1
        finishing = lengths >= batch.num_tokens_no_spec[:count]
        return StepInputs(
            num_reqs=count,
            num_tokens=count,
            positions=inputs.positions,
            input_ids=inputs.input_ids,
            logits_rows=None,
            finishing=finishing,
            all_finishing=bool(finishing.all()),
            offsets=self.arange[: count + 1],
            common=[],
            lengths=host.lengths,
        )

    def _decode_inputs(self, size: int) -> DecodeInputs:
        words = self.words
        groups, start = len(self.tables), self._random_words(size)
        end = start + random_stage.WORDS * size
        return DecodeInputs(
            size=size,
            words=words[: (4 + groups) * size],
            positions=words[: 2 * size].view(torch.int64),
            input_ids=words[2 * size : 3 * size],
            lengths=words[3 * size : 4 * size],
            slots=[words[(4 + group) * size : (5 + group) * size] for group in range(groups)],
            block_tables=[table.block_table.gpu[:size] for table in self.tables],
            random_words=words[:end],
            random=RandomInputs.within(words[start:end], size),
        )

    def _random_words(self, size: int) -> int:
        """Where those of random sampling begin: behind all others, eight-byte aligned."""
        return ((4 + len(self.tables)) * size + 1) // 2 * 2

    def wait_for_tables(self) -> None:
        """Until the block tables may be written on the host: a copy of them may still be on its way."""
        if self.tables_on_their_way is not None:
            self.tables_on_their_way.wait()
            self.tables_on_their_way = None

    def _sent(self, stage: _Stage, blocks_changed: bool) -> None:
        if blocks_changed:
            for table in self.tables:
                table.commit_block_table(self.batch.num_reqs)
            self.tables_on_their_way = stage
        stage.record()

    def _slots(self, table: object, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        size: int = table.block_size  # type: ignore[attr-defined]
        blocks = table.block_table.np[rows, positions // size]  # type: ignore[attr-defined]
        return blocks * size + positions % size

    def _next_stage(self) -> _Stage:
        self.turn ^= 1
        stage = self.stages[self.turn]
        stage.wait()
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
        count = len(chosen)
        in_order = count == len(tokens) and np.array_equal(chosen, self.arange[:count])
        if in_order and np.array_equal(places, chosen):
            input_ids[:count].copy_(tokens[:, 0])
            return
        index = torch.from_numpy(np.stack((places, chosen)).astype(np.int64)).to(self.device)
        input_ids.index_copy_(0, index[0], tokens[:, 0].index_select(0, index[1]))


class _Cutter:
    """Cuts one step's arrays out of a stage, in order, and sends the used part to the device's buffer."""

    def __init__(self, stage: _Stage, device: torch.Tensor) -> None:
        self.stage = stage
        self.device = device
        self.used = 0

    def take(self, values: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.used, self.used + len(values)
        self.stage.numpy[start:end] = values
        self.used = end
        return self.stage.host[start:end], self.device[start:end]

    def take64(self, values: np.ndarray) -> torch.Tensor:
        assert self.used % 2 == 0, "64-bit values come first"
        start, end = self.used, self.used + 2 * len(values)
        self.stage.numpy[start:end].view(np.int64)[:] = values
        self.used = end
        return self.device[start:end].view(torch.int64)

    def send(self) -> None:
        self.device[: self.used].copy_(self.stage.host[: self.used], non_blocking=True)
