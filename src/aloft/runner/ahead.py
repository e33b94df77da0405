"""Begins the next decode step before the engine asks for it.

Once a captured step is over and the host knows its tokens, the step after it is nearly always the same one a token
further. It starts at once, beside the host's thread, which meanwhile delivers the tokens and schedules. If the engine
then asks for something else, it is given up: it has written nothing but the keys and values of tokens that are
computed again (or belong to nobody), in blocks that no other request can share, because they are not full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch_npu import npu
from vllm.config import VllmConfig

from aloft.runner import kv
from aloft.runtime import beside

if TYPE_CHECKING:
    from aloft.runner.graphs import DecodeGraph
    from aloft.runner.requests import Requests


def possible(config: VllmConfig) -> bool:
    """Whether a step may be begun that then is not wanted: no other process takes part in it, and what it writes can
    be written twice, which is not so where old tokens are compressed."""
    return (
        config.parallel_config.world_size_across_dp == 1
        and config.kv_transfer_config is None
        and not kv.has_fp8(kv.attention_layers(config))
        and beside.available()
    )


class StepAhead:
    """The step that has been begun, if any."""

    def __init__(self, requests: Requests, max_model_len: int, stream: npu.Stream) -> None:
        self.requests = requests
        self.max_model_len = max_model_len
        self.stream = stream
        self.running = False
        self._graph: DecodeGraph | None = None  # of the step
        self._number = 0
        self._rows: object = None  # of which the two below are
        self._limits = np.empty(0, dtype=np.int64)  # tokens at which each row ends
        self._stops: frozenset[int] = frozenset()  # tokens that end some row

    def begin(self, graph: DecodeGraph, tokens: np.ndarray, rows: tuple[list[str], dict[str, int]]) -> None:
        """Starts the step after one that gave ``tokens``, int32 ``[B]``, unless it will not come like that.

        graph: a closed one, whose inputs are those of the step that is over. rows: as the batch is now; the same object
        while it stays so.
        """
        assert not self.running and graph.stage is not None
        if not graph.attention.complete:
            return
        if self.requests.prompt_logprobs.wanted or self._ends(tokens, rows) or not beside.free():
            return
        if not graph.stage.advance(tokens, ahead=True):
            return
        self.running, self._graph = True, graph
        self._number = beside.replay(graph.graph)

    def finish(self) -> None:
        """The step is the one that was asked for: waits for its end, computing."""
        self.running = False
        assert self._graph is not None and self._graph.stage is not None
        random = self._graph.stage.random
        numbers = None if random is None else random.confirm()
        if random is not None and numbers is not None:  # the user's program draws or seeds between two steps
            beside.give_up(self._number)
            self.stream.synchronize()
            random.correct(numbers)
            self._graph.graph.replay()
        self.stream.synchronize()

    def give_up(self) -> None:
        """It is not."""
        if self.running:
            self.running = False
            self._graph = None
            beside.give_up(self._number)

    def _ends(self, tokens: np.ndarray, rows: tuple[list[str], dict[str, int]]) -> bool:
        """Whether some request ends with these tokens, so that the next step has other rows."""
        batch = self.requests.batch
        if rows is not self._rows:
            self._rows = rows
            params = [self.requests.states[req_id].sampling_params for req_id in rows[0]]
            count = len(params)
            limits = [self.max_model_len if p is None or p.max_tokens is None else p.max_tokens for p in params]
            self._limits = np.minimum(batch.num_prompt_tokens[:count] + np.array(limits), self.max_model_len)
            self._stops = frozenset(
                token for p in params if p is not None for token in (p.eos_token_id, *(p.stop_token_ids or ()))
            ) - {None}
        made = batch.num_tokens_no_spec[: len(self._limits)] + len(self.requests.sampled.lately)
        return bool((made >= self._limits).any()) or not self._stops.isdisjoint(tokens.tolist())
