"""Scheduler outputs and a persistent batch for tests that need no engine."""

from __future__ import annotations

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

BLOCK = 16
VOCAB = 100


def new(req_id, prompt, blocks, params=None, computed=0, prefill=None):
    return NewRequestData(
        req_id=req_id,
        prompt_token_ids=list(prompt),
        mm_features=[],
        sampling_params=params or SamplingParams(temperature=0),
        pooling_params=None,
        block_ids=(list(blocks),),
        num_computed_tokens=computed,
        lora_request=None,
        prefill_token_ids=prefill,
    )


def cached(*rows, resumed=(), tokens=None):
    """rows: (req_id, num_computed_tokens, num_output_tokens, new blocks or None)."""
    return CachedRequestData(
        req_ids=[r[0] for r in rows],
        resumed_req_ids=set(resumed),
        new_token_ids=[],
        all_token_ids=tokens or {},
        new_block_ids=[None if r[3] is None else (list(r[3]),) for r in rows],
        num_computed_tokens=[r[1] for r in rows],
        num_output_tokens=[r[2] for r in rows],
    )


def step(counts, news=(), olds=None, finished=(), preempted=()):
    return SchedulerOutput(
        scheduled_new_reqs=list(news),
        scheduled_cached_reqs=olds or CachedRequestData.make_empty(),
        num_scheduled_tokens=dict(counts),
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=set(finished),
        free_encoder_mm_hashes=[],
        preempted_req_ids=set(preempted),
    )


class Event:
    """A copy that has (not) arrived."""

    def __init__(self, arrived=True):
        self.arrived, self.waited = arrived, False

    def query(self):
        return self.arrived

    def synchronize(self):
        self.arrived = self.waited = True
