"""How the tokens of a step are chosen from its logits: the arg-max, a plain draw in one operator, or vLLM's sampler."""

from __future__ import annotations

import torch
from vllm.config import ModelConfig
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.outputs import SamplerOutput

from aloft.ops import draw as draw_ops
from aloft.runner import grammar, sampling, seeds
from aloft.runner.inputs import Part
from aloft.runner.requests import Requests


class Choice:
    """For the requests of one engine."""

    def __init__(self, requests: Requests, model_config: ModelConfig) -> None:
        self.requests = requests
        self.batch = requests.batch
        self.sampler = sampling.AloftSampler(model_config.logprobs_mode, model_config.use_fp64_gumbel)
        self.one_operator = draw_ops.native() and not model_config.use_fp64_gumbel

    def is_greedy(self) -> bool:
        """Whether every token is the arg-max of the raw logits, but for a grammar."""
        return not self.requests.fancy and sampling.is_plainly_greedy(self.batch.sampling_metadata)

    def is_random(self) -> bool:
        """Whether tokens are drawn by nothing but temperature, top-k and top-p, in one operator; but for a grammar."""
        return (
            self.one_operator
            and not (self.requests.fancy or self.requests.shaped)
            and sampling.is_plainly_random(self.batch.sampling_metadata)
        )

    def tokens(self, logits: torch.Tensor, part: Part | None, grammar_output: GrammarOutput | None) -> SamplerOutput:
        """A token for every row of the batch; those without logits get one that means nothing.

        logits: ``[B, V]``, or of the rows of ``part`` only. grammar_output: the tokens each row may get.
        """
        requests, metadata = self.requests, self.batch.sampling_metadata
        greedy, plain = self.is_greedy(), grammar_output is None and self.is_random()
        if part is not None and (grammar_output is not None or not (greedy or plain)):
            logits, part = logits.index_select(0, part.places), None  # rows are known by their number in the batch
        if grammar_output is not None:
            grammar.apply(grammar_output, self.batch.req_id_to_index, logits)
        if greedy:
            made = sampling.greedy(logits)
        else:
            if requests.tracked:
                requests.sampled.settle(wait=True)
            for generator, seed, position in requests.positions_of_seeded():
                seeds.reseed(generator, seed, position)
            if not plain:
                return self.sampler(logits=logits, sampling_metadata=metadata)
            made = sampling.random(logits, metadata, None if part is None else part.rows)
        if part is not None:
            made.sampled_token_ids = made.sampled_token_ids.index_select(0, part.places)
        return made
