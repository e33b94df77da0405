"""From logits to tokens: vLLM's sampler with the pieces that need Triton, a compiler or a slow sort replaced."""

from __future__ import annotations

import torch
from torch import nn
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import random_sample
from vllm.v1.sample.sampler import Sampler

from aloft.ops import draw as draw_ops
from aloft.ops import greedy as greedy_ops
from aloft.runner import logprobs
from aloft.runner.draw import draw, numbers_for, pieces
from aloft.runner.random_stage import RandomInputs


class TopKTopP(nn.Module):
    """Filters by top-k and top-p on the device, then draws."""

    def __init__(self, logprobs_mode: str, use_fp64_gumbel: bool) -> None:
        super().__init__()
        self.logprobs_mode = logprobs_mode
        self.use_fp64_gumbel = use_fp64_gumbel

    def forward(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """logits float32 ``[B, V]``, k int32 ``[B]`` (V = off), p float32 ``[B]``; returns token ids ``[B]``."""
        if k is not None or p is not None:
            logits = torch.ops.npu.npu_top_k_top_p(logits, p, k)
        processed = None
        if self.logprobs_mode == "processed_logits":
            processed = logits
        elif self.logprobs_mode == "processed_logprobs":
            processed = logits.log_softmax(dim=-1, dtype=torch.float32)
        probs = logits.softmax(dim=-1, dtype=torch.float32)
        if self.use_fp64_gumbel:  # a wish for vLLM's own way
            return random_sample(probs, generators, True), processed
        return draw(probs, generators), processed


class AloftSampler(Sampler):
    """vLLM's sampler on npu tensors; ranks and specific-token log-probabilities without a compiler."""

    def __init__(self, logprobs_mode: str, use_fp64_gumbel: bool = False) -> None:
        super().__init__(logprobs_mode, use_fp64_gumbel)  # type: ignore[arg-type]
        self.topk_topp_sampler = TopKTopP(logprobs_mode, use_fp64_gumbel)  # type: ignore[assignment]

    @staticmethod
    def gather_logprobs(scores: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        return logprobs.gather(scores, num_logprobs, token_ids)

    def gather_specific_token_logprobs(
        self, scores: torch.Tensor, logprob_token_ids: dict[int, list[int]], sampled: torch.Tensor
    ) -> LogprobsTensors | None:
        return logprobs.gather_specific(scores, logprob_token_ids, sampled)


def greedy(logits: torch.Tensor) -> SamplerOutput:
    """The arg-max of every row, without converting or copying the logits."""
    return SamplerOutput(greedy_ops.tokens(logits), None)


def is_plainly_greedy(metadata: SamplingMetadata) -> bool:
    """Whether sampling is an arg-max of the raw logits, as far as the metadata tells.

    Not covered, and tracked by the batch: logits processors with an active request, and grammars.
    """
    return metadata.all_greedy and _is_plain(metadata)


def random(logits: torch.Tensor, metadata: SamplingMetadata, rows: torch.Tensor | None = None) -> SamplerOutput:
    """A token for every row of logits ``[B, V]`` by its temperature, top-k and top-p, in one operator.

    rows: int32 ``[F]``, of the batch, where the logits ``[F, V]`` are of these. The others use up a random number too:
    a row's number does not depend on which of its neighbours sample.
    """
    assert metadata.temperature is not None
    numbers = numbers_for(len(metadata.temperature), metadata.generators, logits.device)
    given = metadata.temperature, metadata.top_k, metadata.top_p, numbers
    if rows is not None:
        given = tuple(None if each is None else each.index_select(0, rows) for each in given)  # type: ignore[assignment]
    return SamplerOutput(draw_ops.sample(logits, *given, pieces(logits.shape[1])), None)


def captured(logits: torch.Tensor, inputs: RandomInputs) -> torch.Tensor:
    """int32 ``[B, 1]``: the same inside a captured step."""
    numbers = draw_ops.uniform(inputs.draws)
    return draw_ops.sample(logits, inputs.temperature, inputs.top_k, inputs.top_p, numbers, pieces(logits.shape[1]))


def is_plainly_random(metadata: SamplingMetadata) -> bool:
    """Whether ``random`` samples, as far as the metadata tells; not covered: what ``is_plainly_greedy`` does not
    cover, and min-p."""
    return not metadata.all_greedy and _is_plain(metadata)


def _is_plain(metadata: SamplingMetadata) -> bool:
    holder = metadata.thinking_budget_state_holder
    return (
        metadata.no_penalties
        and (holder is None or not holder.has_tracked_requests())
        and metadata.max_num_logprobs is None
        and not metadata.logprob_token_ids
        and metadata.allowed_token_ids_mask is None
        and not metadata.bad_words_token_ids
    )
