"""Log-probabilities of sampled and of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu_input_batch import CachedRequestState


def ranks(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Rank of each row's chosen score, 1 for the best: how many scores are at least as large. ``[n]`` int64."""
    return (scores >= chosen).sum(-1)


def gather(scores: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
    """The token's own score, then the ``num_logprobs`` best of its row.

    scores float32 ``[n, V]``; token_ids int64 ``[n]``. Returns ids int32 and scores ``[n, num_logprobs + 1]``, ranks.
    """
    column = token_ids.unsqueeze(-1)
    chosen = scores.gather(-1, column)
    best, best_ids = torch.topk(scores, num_logprobs, dim=-1)
    return LogprobsTensors(
        torch.cat((column, best_ids), dim=1).to(torch.int32),
        torch.cat((chosen, best), dim=1),
        ranks(scores, chosen),
    )


def gather_specific(
    scores: torch.Tensor, wanted: dict[int, list[int]], sampled: torch.Tensor
) -> LogprobsTensors | None:
    """Scores of the token ids each row asked for, after the sampled token's own; missing ones are -inf."""
    if not wanted:
        return None
    rows, width = scores.shape[0], max(map(len, wanted.values())) + 1
    ids = torch.zeros(rows, width, dtype=torch.int64)
    missing = torch.ones(rows, width, dtype=torch.bool)
    missing[:, 0] = False
    for row, tokens in wanted.items():
        ids[row, 1 : len(tokens) + 1] = torch.tensor(tokens)
        missing[row, 1 : len(tokens) + 1] = False
    ids = ids.to(scores.device)
    ids[:, 0] = sampled
    values = scores.gather(-1, ids).masked_fill_(missing.to(scores.device), float("-inf"))
    chosen = scores.gather(-1, sampled.unsqueeze(-1))
    return LogprobsTensors(ids.to(torch.int32), values, ranks(scores, chosen))


class PromptLogprobs:
    """Collects the log-probabilities of prompts chunk by chunk and hands each over on its last chunk."""

    def __init__(self, vocab_size: int, mode: str, compute_logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.vocab_size = vocab_size
        self.scores_are_logits = mode.endswith("logits")
        self.compute_logits = compute_logits
        self.wanted: dict[str, int] = {}

    def add(self, request: CachedRequestState) -> None:
        """Notes a new request that asks for prompt log-probabilities."""
        count = request.sampling_params.prompt_logprobs if request.sampling_params else None
        if count is not None and request.prompt_token_ids is not None:
            self.wanted[request.req_id] = self.vocab_size if count == -1 else count

    def remove(self, req_id: str) -> None:
        self.wanted.pop(req_id, None)

    def collect(
        self,
        hidden_states: torch.Tensor,
        requests: dict[str, CachedRequestState],
        spans: Callable[[str], tuple[int, int, int] | None],
    ) -> dict[str, LogprobsTensors | None]:
        """spans: (offset in hidden_states, tokens already computed, tokens of this step) of a scheduled request."""
        done: dict[str, LogprobsTensors | None] = {}
        for req_id, count in list(self.wanted.items()):
            span = spans(req_id)
            if span is None:
                continue
            offset, computed, scheduled = span
            request = requests[req_id]
            prompt = request.prompt_token_ids
            assert prompt is not None
            total = len(prompt) - 1  # the first token has no score
            kept = request.in_progress_prompt_logprobs_cpu
            if kept is None:
                kept = LogprobsTensors.empty_cpu(total, count + 1)
                request.in_progress_prompt_logprobs_cpu = kept
            rows = min(scheduled, total - computed)
            if rows > 0:
                targets = torch.tensor(prompt[computed + 1 : computed + 1 + rows]).to(hidden_states.device)
                self._fill(kept, computed, hidden_states[offset : offset + rows], targets, count)
            if computed + scheduled > total:  # this step also computes the last prompt token: it samples
                done[req_id] = kept
                request.in_progress_prompt_logprobs_cpu = None
                del self.wanted[req_id]
        return done

    def _fill(self, kept: LogprobsTensors, start: int, hidden: torch.Tensor, targets: torch.Tensor, count: int) -> None:
        logits = self.compute_logits(hidden).to(torch.float32)
        scores = logits if self.scores_are_logits else logits.log_softmax(dim=-1)
        found = gather(scores, count, targets)
        span = slice(start, start + len(targets))
        kept.logprob_token_ids[span].copy_(found.logprob_token_ids)
        kept.logprobs[span].copy_(found.logprobs)
        kept.selected_token_ranks[span].copy_(found.selected_token_ranks)
