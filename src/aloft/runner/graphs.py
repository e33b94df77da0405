"""Captured decode steps: a step in which every row computes one token is replayed from a graph.

A graph is captured when a batch size is first met, for the next size of the ladder (vLLM's
``cudagraph_capture_sizes``): engines never pay, in time or memory, for sizes they do not use. It holds the whole
model, the logits and, for batches that only need the arg-max, the tokens. Graphs share one memory pool: only one runs
at a time, and what a replay leaves behind (logits, tokens) is valid until the next. A closed graph may also draw its
tokens at random, where the runtime does that in one operator.

A *closed* graph also fetches its inputs from host memory and leaves its tokens there: a step is then one call, where
each copy costs 0.1 ms of a dispatcher that no cache holds after a step. It serves steps whose inputs the host knows.
Where the device computes while the next step is prepared, the tokens are not known yet, and the other kind serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch_npu import npu
from torch_npu._C import _weak_ref_tensor
from vllm.compilation.cuda_graph import CUDAGraphStat
from vllm.config import CUDAGraphMode
from vllm.logger import init_logger

from aloft.runner import sampling

if TYPE_CHECKING:
    from aloft.attention.captured import CapturedAttention
    from aloft.runner.inputs import DecodeInputs, DecodeStage, StepInputs

logger = init_logger("vllm.aloft.graphs")


def ladder(sizes: Sequence[int], max_num_reqs: int) -> list[int]:
    """For every number of rows 0..max_num_reqs the size of the graph that serves it; 0 where none does."""
    useful = sorted({min(size, max_num_reqs) for size in sizes if size > 0})
    table = [0] * (max_num_reqs + 1)
    below = 0
    for size in useful:
        table[below + 1 : size + 1] = [size] * (size - below)
        below = size
    return table


def statistics(num_tokens: int, graph: DecodeGraph | None) -> CUDAGraphStat:
    """What ``--cudagraph-metrics`` counts: a step of ``num_tokens`` tokens, replayed from ``graph`` or run eagerly."""
    padded, mode = (num_tokens, CUDAGraphMode.NONE) if graph is None else (graph.size, CUDAGraphMode.FULL)
    return CUDAGraphStat(num_tokens, padded, padded - num_tokens, str(mode))


@dataclass(slots=True)
class DecodeGraph:
    """One captured step of ``size`` rows."""

    size: int
    graph: npu.NPUGraph
    attention: CapturedAttention
    hidden_states: torch.Tensor = field(init=False)  # [size, hidden]
    logits: torch.Tensor = field(init=False)  # [size, V]
    tokens: torch.Tensor | None = field(init=False)  # int32 [size, 1]; None unless captured with sampling

    stage: DecodeStage | None = None  # a closed graph's inputs
    results: torch.Tensor | None = None  # int32 [size, 1], pinned: a closed graph's tokens
    results_read: np.ndarray | None = None  # the same, int32 [size]
    _tokens: dict[int, torch.Tensor] = field(default_factory=dict)

    def tokens_of(self, num_rows: int) -> torch.Tensor | None:
        """int32 ``[num_rows, 1]``."""
        if self.tokens is None:
            return None
        made = self._tokens.get(num_rows)
        if made is None:
            made = self._tokens[num_rows] = self.tokens[:num_rows]
        return made

    def replay(self, inputs: StepInputs) -> None:
        """Runs the step on the current stream; the inputs are on their way to the device."""
        assert inputs.lengths is not None
        self.attention.prepare(inputs.lengths)
        self.graph.replay()

    def results_of(self, num_rows: int) -> np.ndarray:
        """int32 ``[num_rows]``: the tokens the last replay of a graph with ``results`` has left, once it is over."""
        assert self.results_read is not None
        return self.results_read[:num_rows].copy()


class DecodeGraphs:
    """The graphs of one engine."""

    def __init__(
        self,
        sizes: Sequence[int],
        max_num_reqs: int,
        max_padding: int,
        attention: Callable[[], CapturedAttention],
        inputs: Callable[[int], DecodeInputs],
        run: Callable[[DecodeInputs, CapturedAttention], tuple[torch.Tensor, torch.Tensor]],
        stages: Callable[[int], DecodeStage] | None = None,
        random_stages: Callable[[int], DecodeStage] | None = None,
    ) -> None:
        """sizes: numbers of rows to capture. max_padding: rows that may be added to reach one (they need slots of
        their own in the dummy block). attention: what makes the lengths of a replay known. inputs: where a captured
        step reads them. run: the model, giving hidden states and logits. stages: host memory for the inputs of a
        closed graph; None if there are to be none. random_stages: the same for one that samples at random."""
        self.size_for = [
            size if size - rows <= max_padding else 0 for rows, size in enumerate(ladder(sizes, max_num_reqs))
        ]
        self.attention = attention
        self.inputs = inputs
        self.run = run
        self.stages = stages
        self.random_stages = random_stages
        self.graphs: dict[tuple[int, bool, bool, bool], DecodeGraph] = {}
        self.pool = npu.graph_pool_handle()
        self.stream = npu.Stream()
        self.refused = False

    def find(self, num_rows: int, greedy: bool, closed: bool = False, random: bool = False) -> DecodeGraph | None:
        """The graph for a decode step, captured now if need be; None: the step runs eagerly.

        random: it may sample by temperature, top-k and top-p, which only a closed one does."""
        closed = closed and self.stages is not None
        random = random and closed and self.random_stages is not None
        size = self.size_for[num_rows]
        if not size or self.refused:
            return None
        graph = self.graphs.get((size, greedy, closed, random))
        if graph is not None:
            return graph
        try:
            graph = self._capture(size, greedy, closed, random)
        except Exception as error:  # whatever an operator says against being captured
            if closed:  # it may be the copies
                self.stages = None
                return self.find(num_rows, greedy)
            self.refused = True
            logger.warning(
                "Decode steps run without graph replay, which is slower: capturing one of %d rows failed (%s: %s). "
                "--enforce-eager says so from the start.",
                size,
                type(error).__name__,
                str(error).strip().splitlines()[0] if str(error).strip() else "no reason given",
            )
            return None
        self.graphs[size, greedy, closed, random] = graph
        return graph

    def _capture(self, size: int, greedy: bool, closed: bool, random: bool) -> DecodeGraph:
        captured = DecodeGraph(size, npu.NPUGraph(), self.attention())
        inputs = self.inputs(size)
        if closed:
            stages = self.random_stages if random else self.stages
            assert stages is not None
            captured.stage = stages(size)
            if greedy or random:
                captured.results = torch.empty(size, 1, dtype=torch.int32, pin_memory=True)
                captured.results_read = captured.results.numpy()[:, 0]
        with npu.stream(self.stream):
            captured.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                if captured.stage is not None:
                    words = inputs.random_words if random else inputs.words
                    words.copy_(captured.stage.words, non_blocking=True)
                hidden, logits = self.run(inputs, captured.attention)
                tokens = None
                if random:
                    tokens = sampling.captured(logits, inputs.random)
                elif greedy:
                    tokens = sampling.greedy(logits).sampled_token_ids
                if captured.results is not None:
                    assert tokens is not None
                    captured.results.copy_(tokens, non_blocking=True)
            finally:
                captured.graph.capture_end()
        captured.tokens = tokens
        # not kept: what one graph computes is used before another runs, so they may share the memory
        captured.hidden_states, captured.logits = _weak_ref_tensor(hidden), _weak_ref_tensor(logits)
        return captured

    def clear(self) -> None:
        """Frees the graphs and their memory."""
        for graph in self.graphs.values():
            graph.graph.reset()
        self.graphs.clear()
        self.pool = npu.graph_pool_handle()  # the old one ended with its last graph
