"""The requests an engine works on, and the persistent batch: what a scheduler output changes in them.

Accepts both formats vLLM's scheduler speaks: a request resumed after preemption arrives among the cached requests
with ``all_token_ids`` (V1), or among the new ones with ``prefill_token_ids`` (V2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.sampling_params import SamplingParams, SamplingType
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from aloft.runner.sampled import SampledTokens

if TYPE_CHECKING:
    from aloft.runner.logprobs import PromptLogprobs


def changes_argmax(params: SamplingParams) -> bool:
    """Whether a logits processor of vLLM may act on this request before the arg-max."""
    return bool(params.min_tokens or params.logit_bias or params.structured_outputs)


def needs_outputs(params: SamplingParams) -> bool:
    """Whether sampling the next token looks at the tokens generated so far."""
    return bool(
        params.min_tokens
        or params.bad_words_token_ids
        or params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
    )


class Requests:
    """State by request id, and the batch rows of those scheduled now."""

    def __init__(
        self, batch: InputBatch, device: torch.device, prompt_logprobs: PromptLogprobs, custom_processors: bool
    ) -> None:
        self.batch = batch
        self.device = device
        self.prompt_logprobs = prompt_logprobs
        self.custom_processors = custom_processors
        self.states: dict[str, CachedRequestState] = {}
        self.sampled = SampledTokens(batch)
        self.seeds: dict[str, int] = {}
        self.fancy: set[str] = set()  # requests in the batch whose arg-max is not that of the raw logits
        self.tracked: set[str] = set()  # requests in the batch whose sampling looks at their own output
        self.shaped: set[str] = set()  # requests in the batch whose probabilities something else changes: min-p
        self.blocks_changed = True

    # ---- one step -----------------------------------------------------------------------------------------------

    def goes_on(self, step: SchedulerOutput) -> bool:
        """Whether a step does no more than compute the next token of every row, so that there is nothing to update.

        The batch's token ids, lengths and computed tokens may lag behind then (``SampledTokens.catch_up``).
        """
        data = step.scheduled_cached_reqs
        return (
            (
                data.req_ids == self.batch.req_ids  # the scheduler's order, which rows that left may have changed here
                or step.num_scheduled_tokens.keys() == self.batch.req_id_to_index.keys()
            )
            and step.total_num_scheduled_tokens == len(data.req_ids)
            and not (step.scheduled_new_reqs or step.finished_req_ids or data.resumed_req_ids)
            and not any(data.new_block_ids)
            and not (self.blocks_changed or self.fancy or self.sampled.pending)
        )

    def update(self, step: SchedulerOutput) -> bool:
        """Brings states and batch in line with a scheduler output; returns whether rows came, moved or went."""
        batch = self.batch
        self.sampled.catch_up()
        self.sampled.settle()
        leaving = self._leaving(step)
        changed = bool(leaving or step.scheduled_new_reqs)
        for req_id in leaving:
            self._leave(req_id, keep=req_id not in step.finished_req_ids)
        for req_id in step.finished_req_ids:
            self._forget(req_id)
        arriving = [self._new(data) for data in step.scheduled_new_reqs]
        arriving += self._update_cached(step)
        for state in arriving:
            self._enter(state)
        changed |= bool(arriving)
        if changed:
            batch.condense()
            self.sampled.rows_changed()
            self.blocks_changed = True
        if changed or self.fancy:  # otherwise no logits processor has anything to learn
            batch.refresh_metadata()
        return changed

    def _leaving(self, step: SchedulerOutput) -> list[str]:
        """Rows that are finished, or not scheduled now, or start afresh (resumed, or the same id again)."""
        scheduled = step.num_scheduled_tokens
        rows = self.batch.req_id_to_index
        resumed = step.scheduled_cached_reqs.resumed_req_ids
        steady = not (resumed or step.scheduled_new_reqs or step.finished_req_ids)
        if steady and scheduled.keys() == rows.keys():
            return []
        fresh = resumed.union(data.req_id for data in step.scheduled_new_reqs)
        return [r for r in rows if r not in scheduled or r in fresh or r in step.finished_req_ids]

    def _leave(self, req_id: str, keep: bool) -> None:
        state = self.states[req_id]
        if keep:
            self.sampled.settle(wait=True)
            row = self.batch.req_id_to_index[req_id]
            start, end = self.batch.num_prompt_tokens[row], self.batch.num_tokens_no_spec[row]
            # the list object is shared with logits processors, so it is filled in place
            state.output_token_ids[:] = self.batch.token_ids_cpu[row, start:end].tolist()
        self.batch.remove_request(req_id)
        self.fancy.discard(req_id)
        self.tracked.discard(req_id)
        self.shaped.discard(req_id)

    def _forget(self, req_id: str) -> None:
        self.states.pop(req_id, None)
        self.seeds.pop(req_id, None)
        self.prompt_logprobs.remove(req_id)

    def _new(self, data: NewRequestData) -> CachedRequestState:
        known = self.states.get(data.req_id)
        if known is not None:
            return self._again(known, data)
        params = data.sampling_params
        assert params is not None and data.prompt_token_ids is not None, "refused when the engine started"
        generator = None
        if params.sampling_type == SamplingType.RANDOM_SEED:
            assert params.seed is not None
            generator = torch.Generator(device=self.device)
            self.seeds[data.req_id] = params.seed
        state = CachedRequestState(
            req_id=data.req_id,
            prompt_token_ids=data.prompt_token_ids,
            mm_features=data.mm_features,
            sampling_params=params,
            generator=generator,
            block_ids=data.block_ids,
            num_computed_tokens=data.num_computed_tokens,
            output_token_ids=_generated(data),
        )
        self.states[data.req_id] = state
        self.prompt_logprobs.add(state)
        return state

    def _again(self, state: CachedRequestState, data: NewRequestData) -> CachedRequestState:
        """A known id among the new requests: resumed after preemption (V2), or a session with further input."""
        assert data.prompt_token_ids is not None
        if data.prompt_token_ids != state.prompt_token_ids:  # a session: what was generated is now part of the prompt
            state.prompt_token_ids = data.prompt_token_ids
            state.num_prompt_tokens = len(data.prompt_token_ids)
            state.sampling_params = data.sampling_params
            self.prompt_logprobs.add(state)
        state.output_token_ids[:] = _generated(data)
        state.block_ids = data.block_ids
        state.num_computed_tokens = data.num_computed_tokens
        return state

    def _update_cached(self, step: SchedulerOutput) -> list[CachedRequestState]:
        """Updates rows in place; returns requests that are not in the batch and have to enter it (again)."""
        data = step.scheduled_cached_reqs
        batch = self.batch
        new_blocks = data.new_block_ids
        if data.req_ids == batch.req_ids:  # the steady state: same rows, same order
            batch.num_computed_tokens_cpu[: len(data.req_ids)] = data.num_computed_tokens
            for position, more in enumerate(new_blocks):
                if more is not None:
                    self._append_blocks(self.states[data.req_ids[position]], position, more)
            return []
        arriving: list[CachedRequestState] = []
        for i, req_id in enumerate(data.req_ids):
            state, row, blocks = self.states[req_id], batch.req_id_to_index.get(req_id), new_blocks[i]
            state.num_computed_tokens = data.num_computed_tokens[i]
            if req_id in data.resumed_req_ids:
                assert blocks is not None
                state.block_ids = blocks
            elif blocks is not None:
                self._append_blocks(state, row, blocks)
            if row is not None:
                batch.num_computed_tokens_cpu[row] = state.num_computed_tokens
                continue
            tokens = data.all_token_ids.get(req_id)
            if tokens is not None:  # V1: the scheduler knows better, stale tokens included
                state.output_token_ids[:] = tokens[state.num_prompt_tokens :]
            del state.output_token_ids[data.num_output_tokens[i] :]
            arriving.append(state)
        return arriving

    def _append_blocks(self, state: CachedRequestState, row: int | None, blocks: Sequence[list[int]]) -> None:
        for mine, more in zip(state.block_ids, blocks, strict=True):
            mine.extend(more)
        if row is not None:
            self.batch.block_table.append_row(tuple(blocks), row)
            self.blocks_changed = True

    def _enter(self, state: CachedRequestState) -> None:
        self.batch.add_request(state)
        params = state.sampling_params
        assert params is not None
        if self.custom_processors or changes_argmax(params):
            self.fancy.add(state.req_id)
        if self.custom_processors or needs_outputs(params):
            self.tracked.add(state.req_id)
        if self.custom_processors or params.min_p:
            self.shaped.add(state.req_id)

    # ---- sampling -----------------------------------------------------------------------------------------------

    def positions_of_seeded(self) -> list[tuple[torch.Generator, int, int]]:
        """Generator, seed and output position of every seeded row."""
        batch = self.batch
        done = batch.num_tokens_no_spec - batch.num_prompt_tokens
        return [(g, self.seeds[batch.req_ids[row]], int(done[row])) for row, g in batch.generators.items()]

    def tracked_rows(self) -> list[tuple[int, list[int]]]:
        """Rows whose output list sampling looks at, with that list."""
        row_of = self.batch.req_id_to_index
        return [(row_of[req_id], self.states[req_id].output_token_ids) for req_id in self.tracked]

    def check_integrity(self) -> None:
        """Raises AssertionError if rows, states and token counts disagree (tests, and when idle)."""
        batch = self.batch
        assert list(batch.req_ids) == sorted(batch.req_id_to_index, key=batch.req_id_to_index.__getitem__)
        assert set(batch.req_ids) <= self.states.keys()
        count = batch.num_reqs
        assert np.all(batch.num_prompt_tokens[:count] <= batch.num_tokens_no_spec[:count])


def _generated(data: NewRequestData) -> list[int]:
    """Tokens a new request has generated before (V2 sends them when it resumes one)."""
    if data.prefill_token_ids is None or data.prompt_token_ids is None:
        return []
    return list(data.prefill_token_ids[len(data.prompt_token_ids) :])
