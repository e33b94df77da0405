"""One step of the engine: update the batch, build the inputs, run the model, sample, hand over the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch_npu import npu
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader import get_model
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    AsyncModelRunnerOutput,
    ModelRunnerOutput,
    SamplerOutput,
)
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.worker.gpu_input_batch import InputBatch

from aloft import models
from aloft.attention import captured
from aloft.attention.captured import CapturedAttention
from aloft.config import AloftConfig
from aloft.runner import ahead, graphs, kv, sampling
from aloft.runner.ahead import StepAhead
from aloft.runner.choice import Choice
from aloft.runner.graphs import DecodeGraph, DecodeGraphs
from aloft.runner.groups import CacheGroups
from aloft.runner.inputs import DecodeInputs, InputBuilder, StepInputs
from aloft.runner.logprobs import PromptLogprobs
from aloft.runner.output import StepOutput
from aloft.runner.own_stream import OwnStream
from aloft.runner.requests import Requests
from aloft.runner.sleep import Sleep
from aloft.runner.token_copies import TokenCopies


@dataclass(slots=True)
class _Executed:
    """What ``execute_model`` leaves for ``sample_tokens``."""

    step: SchedulerOutput
    inputs: StepInputs
    hidden_states: torch.Tensor
    logits: torch.Tensor | None  # of the rows of inputs.part, perhaps with padding; None: no row samples
    tokens: torch.Tensor | None = None  # int32 [B, 1], where the step itself took the arg-max
    graph: DecodeGraph | None = None  # that ran it
    values: np.ndarray | None = None  # int32 [B], the tokens, where the host knows one for every row


class ModelRunner:
    """Owns the model, the KV cache and the persistent batch of one device."""

    def __init__(self, vllm_config: VllmConfig, config: AloftConfig, device: torch.device) -> None:
        self.vllm_config = vllm_config
        self.config = config
        self.model_config = vllm_config.model_config
        self.device = device
        self.asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
        self.counts_graphs = vllm_config.observability_config.cudagraph_metrics
        self.max_num_reqs = vllm_config.scheduler_config.max_num_seqs
        self.max_num_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._model: Any = None
        self.kv_caches: dict[str, kv.Cache] = {}
        self.groups: CacheGroups | None = None
        self.executed: _Executed | None = None
        self.last: _Executed | None = None  # the last step, if it can go on (_goes_on)
        self.names: tuple[list[str], dict[str, int]] | None = None  # ids of the rows, and the rows of the ids
        self.graphs: DecodeGraphs | None = None
        self.ahead: StepAhead | None = None  # where the next step may begin before it is asked for
        self.rest = Sleep(self)
        self.block_size = vllm_config.cache_config.block_size  # of the layers; vLLM puts its scheduler's there later

    # ---- start-up -----------------------------------------------------------------------------------------------

    def load_model(self) -> None:
        self._model = models.fuse(get_model(vllm_config=self.vllm_config), self.config.fusion_level, self.vllm_config)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        self.specs, self.shared_layers = kv.layers_and_specs(self.vllm_config)
        return self.specs

    @torch.inference_mode()
    def profile(self, num_tokens: int) -> None:
        """A forward pass over ``num_tokens`` dummy tokens without KV cache, and the logits of the last one."""
        ids = torch.zeros(num_tokens, dtype=torch.int32, device=self.device)
        positions = torch.arange(num_tokens, dtype=torch.int64, device=self.device)
        with set_forward_context(None, self.vllm_config, num_tokens=num_tokens, slot_mapping={}):
            hidden = self._forward(ids, positions)
        sampling.greedy(self._logits(hidden[-1:]))
        npu.synchronize(self.device)

    def initialize_kv_cache(self, config: KVCacheConfig) -> None:
        """Allocates and binds the cache, and builds everything that depends on its plan."""
        npu.empty_cache()  # what loading left, such as the transposed copy of the head
        self.kv_caches = kv.allocate(config, self.device, cast(torch.dtype, self.model_config.dtype))
        self.kv_cache_config = config
        self.bind_caches()
        self._build_batch(config)

    def bind_caches(self) -> None:
        layers, shared = kv.attention_layers(self.vllm_config), self.shared_layers
        kv.bind(self.kv_caches, shared, layers)
        self.groups = CacheGroups(self.kv_cache_config, shared, layers, self.vllm_config, self.device)

    def _build_batch(self, config: KVCacheConfig) -> None:
        model = self.model_config
        custom = tuple(model.logits_processors or ())
        processors = build_logitsprocs(self.vllm_config, self.device, True, False, custom)
        has_custom = not all(type(p).__module__.startswith("vllm.v1.sample.") for p in processors.all)
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        self.batch = InputBatch(
            max_num_reqs=self.max_num_reqs,
            max_model_len=model.max_model_len,
            max_num_batched_tokens=self.max_num_tokens,
            device=self.device,
            vocab_size=model.get_vocab_size(),
            block_sizes=[spec.block_size for spec in specs],
            max_num_blocks_per_req=[
                spec.max_num_blocks_per_req(self.vllm_config, model.max_model_len) for spec in specs
            ],
            logitsprocs=processors,
            logitsprocs_need_output_token_ids=has_custom,
        )
        prompt_logprobs = PromptLogprobs(model.get_vocab_size(), model.logprobs_mode, self._logits)
        self.requests = Requests(self.batch, self.device, prompt_logprobs, has_custom)
        layers = kv.attention_layers(self.vllm_config)
        self.choice = Choice(self.requests, model)
        self.inputs = InputBuilder(self.batch, self.max_num_tokens, self.device, not kv.has_fp8(layers))
        self.own_stream = OwnStream(self.device)
        self.stream = self.own_stream.stream
        self.copies = TokenCopies(self.max_num_reqs, self.stream)
        if self.config.run_ahead and not self.asynchronous and ahead.possible(self.vllm_config):
            self.ahead = StepAhead(self.requests, model.max_model_len, self.stream)
        sizes = self.vllm_config.compilation_config.cudagraph_capture_sizes
        if sizes and specs:
            self.graphs = DecodeGraphs(
                sizes,
                self.max_num_reqs,
                min(spec.block_size for spec in specs),
                captured.chosen(self.config.graph_attention, kv.has_int8(layers), kv.has_fp8(layers)),
                self.inputs.decode_inputs,
                self._run_captured,
                self.inputs.closed_stage,
                self.inputs.random_stage if self.choice.one_operator else None,
            )

    # ---- one step -----------------------------------------------------------------------------------------------

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput | None:
        """Runs the model over the scheduled tokens; the tokens are sampled by ``sample_tokens``."""
        self.executed = None
        last, self.last = self.last, None
        if last is not None and self._goes_on(step, last):
            assert last.graph is not None
            self.executed = self._replay(step, last.graph, last)
            return None
        if self.ahead is not None:
            self.ahead.give_up()
        if step.new_block_ids_to_zero:
            kv.zero_blocks(self.kv_caches.values(), step.new_block_ids_to_zero, self.device)
        if step.kv_cache_block_copies:
            kv.copy_blocks(self.kv_caches.values(), step.kv_cache_block_copies, self.device)
        self.inputs.wait_for_tables()
        if self.requests.update(step):
            self.names = None
        if not step.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        self._execute(step)
        return None

    def _goes_on(self, step: SchedulerOutput, last: _Executed) -> bool:
        """Whether a step is the last one a token further, with the same rows; its inputs are then ready."""
        if not self.requests.goes_on(step) or self.requests.prompt_logprobs.wanted:
            return False
        if step.new_block_ids_to_zero or step.kv_cache_block_copies:
            return False
        assert last.graph is not None and last.graph.stage is not None and last.values is not None
        if self.ahead is not None and self.ahead.running:
            return True
        return last.graph.stage.advance(last.values)

    @torch.inference_mode()
    def _execute(self, step: SchedulerOutput) -> None:
        requests, batch = self.requests, self.batch
        if self.graphs is not None and step.total_num_scheduled_tokens == batch.num_reqs:
            closed = not requests.sampled.pending
            graph = self.graphs.find(batch.num_reqs, self.choice.is_greedy(), closed, random=self.choice.is_random())
            if graph is not None:
                self.executed = self._replay(step, graph)
                return
        self.executed = self._eager(step)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """A few dummy tokens through model and cache: what is made or touched when first used is there for the first
        request. Captures nothing."""
        count = min(16, self.max_num_tokens, *(table.block_size for table in self.inputs.tables))
        ids, positions, common = self.inputs.dummy(count)
        hidden = self._forward_with(ids, positions, common)
        sampling.greedy(self._logits(hidden[-1:]))
        if not self.inputs.padding_writes:
            kv.zero_blocks(self.kv_caches.values(), [0], self.device)
        npu.synchronize(self.device)

    def _forward_with(
        self, input_ids: torch.Tensor, positions: torch.Tensor, common: list[CommonAttentionMetadata]
    ) -> torch.Tensor:
        """The model's hidden states, with the metadata of every KV cache group."""
        assert self.groups is not None
        metadata = self.groups.metadata(lambda builder, group: builder.build(0, common[group]))
        slots = self.groups.slots(metadata)
        with set_forward_context(metadata, self.vllm_config, num_tokens=len(input_ids), slot_mapping=slots):
            return self._forward(input_ids, positions)

    def _eager(self, step: SchedulerOutput) -> _Executed:
        requests, batch = self.requests, self.batch
        counts = step.num_scheduled_tokens
        scheduled = np.fromiter(map(counts.__getitem__, batch.req_ids), dtype=np.int32, count=batch.num_reqs)
        inputs = self.inputs.build(scheduled, requests.sampled, requests.blocks_changed)
        requests.blocks_changed = False
        hidden = self._forward_with(inputs.input_ids, inputs.positions, inputs.common)
        logits = None
        if inputs.finishing.any():
            wanted = hidden if inputs.logits_rows is None else hidden.index_select(0, inputs.logits_rows)
            logits = self._logits(wanted)
        return _Executed(step, inputs, hidden, logits)

    def _replay(self, step: SchedulerOutput, graph: DecodeGraph, again: _Executed | None = None) -> _Executed:
        """A step in which every row computes one token. again: the last step, whose inputs have been advanced."""
        if again is not None:
            again.step = step
            if self.ahead is not None and self.ahead.running:
                self.ahead.finish()
            else:
                graph.replay(again.inputs)
            return again
        requests, count = self.requests, self.batch.num_reqs
        if graph.stage is not None:
            self.stream.synchronize()  # whatever replay was the last has fetched its inputs
            inputs = self.inputs.build_closed(graph.stage, requests.blocks_changed, requests.seeds)
        else:
            inputs = self.inputs.build_decode(graph.size, requests.sampled, requests.blocks_changed)
        requests.blocks_changed = False
        graph.replay(inputs)
        samples = inputs.all_finishing or inputs.finishing.any()
        logits = graph.logits if samples else None
        return _Executed(step, inputs, graph.hidden_states, logits, graph.tokens_of(count), graph)

    def _run_captured(self, inputs: DecodeInputs, attention: CapturedAttention) -> tuple[torch.Tensor, torch.Tensor]:
        """The model over a decode step that is being captured: hidden states and logits of every row."""
        assert self.groups is not None
        metadata = self.groups.metadata(
            lambda builder, group: builder.build_captured(
                attention, inputs.lengths, inputs.block_tables[group], inputs.slots[group]
            )
        )
        slots = self.groups.slots(metadata)
        with set_forward_context(metadata, self.vllm_config, num_tokens=inputs.size, slot_mapping=slots):
            hidden = self._forward(inputs.input_ids, inputs.positions)
        return hidden, self._logits(hidden)

    def _forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._model(input_ids=input_ids, positions=positions, intermediate_tensors=None, inputs_embeds=None)

    def _logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._model.compute_logits(hidden_states)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """The tokens of the step ``execute_model`` ran; None if that failed."""
        executed, self.executed = self.executed, None
        if executed is None:
            return None
        if self.names is None:
            self.names = self.batch.req_ids.copy(), self.batch.req_id_to_index.copy()
        output = ModelRunnerOutput(*self.names)
        output.prompt_logprobs_dict = self._prompt_logprobs(executed)
        if self.counts_graphs:
            output.cudagraph_stats = graphs.statistics(executed.step.total_num_scheduled_tokens, executed.graph)
        plain = executed.logits is not None and grammar_output is None
        graph = executed.graph if plain else None
        if graph is not None and graph.results is not None and self.stream.query():  # asked before they are read
            return self._known(executed, output, graph.results_of(executed.inputs.num_reqs))
        return self._sampled(executed, output, grammar_output)

    def _known(self, executed: _Executed, output: ModelRunnerOutput, values: np.ndarray) -> ModelRunnerOutput:
        """The output of a step whose tokens, int32 ``[B]``, are on the host."""
        inputs, requests = executed.inputs, self.requests
        output.sampled_token_ids = sampled = [[token] for token in values.tolist()]
        if inputs.all_finishing and not requests.tracked:
            requests.sampled.add_lately(values)
            executed.values = values
            if self.ahead is not None:
                assert executed.graph is not None and self.names is not None
                self.ahead.begin(executed.graph, values, self.names)
            self.last = executed  # not before: inputs that begin() left half advanced must not go on
            return output
        for row in np.flatnonzero(~inputs.finishing).tolist():
            sampled[row] = []
        requests.sampled.add_known(values, np.flatnonzero(inputs.finishing), requests.tracked_rows())
        return output

    @torch.inference_mode()
    def _sampled(
        self, executed: _Executed, output: ModelRunnerOutput, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Samples, and sends the tokens to the host."""
        self.requests.sampled.catch_up()  # the step may have gone on from ones whose tokens the batch does not have yet
        inputs = executed.inputs
        unfinished = [] if inputs.all_finishing else np.flatnonzero(~inputs.finishing).tolist()
        if executed.logits is None:
            result = StepOutput(output, None, None, unfinished)
            return result if self.asynchronous else result.get_output()
        if executed.tokens is not None and grammar_output is None:
            sampled = SamplerOutput(executed.tokens, None)
        else:
            sampled = self.choice.tokens(executed.logits[: inputs.num_reqs], inputs.part, grammar_output)
        logprobs = sampled.logprobs_tensors.to_cpu_nonblocking() if sampled.logprobs_tensors is not None else None
        device = sampled.sampled_token_ids
        tokens = self.copies.send(device, readers=2)
        rows = self.inputs.arange[: inputs.num_reqs] if inputs.all_finishing else np.flatnonzero(inputs.finishing)
        tracked = self.requests.tracked_rows() if self.requests.tracked else []
        self.requests.sampled.add(device, tokens.numpy, tokens.ready, rows, tracked, tokens.read)
        result = StepOutput(output, tokens, logprobs, unfinished)
        return result if self.asynchronous else result.get_output()

    def _prompt_logprobs(self, executed: _Executed) -> dict[str, Any]:
        collector = self.requests.prompt_logprobs
        if not collector.wanted:
            return {}
        row_of, counts = self.batch.req_id_to_index, executed.step.num_scheduled_tokens

        def span(req_id: str) -> tuple[int, int, int] | None:
            row = row_of.get(req_id)
            if row is None:
                return None
            computed = int(self.batch.num_computed_tokens_cpu[row])
            return int(executed.inputs.offsets[row]), computed, counts[req_id]

        return collector.collect(executed.hidden_states, self.requests.states, span)

    # ---- the rest -----------------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The model, for whoever is no step: that may change its weights."""
        self.interrupt()
        return self._model

    def interrupt(self) -> None:
        """Between two steps: the next one begins when it is asked for, with the weights of then, whatever has begun."""
        self.last = None
        if self.ahead is not None:
            self.ahead.give_up()

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    def shutdown(self) -> None:
        """Lets go of model and cache so that an engine in the user's own process returns its memory."""
        self.interrupt()
        for layer in kv.attention_layers(self.vllm_config).values():
            layer.kv_cache = torch.empty(0)
        if self.graphs is not None:
            self.graphs.clear()
            self.graphs = None
        self.kv_caches = {}
        self.groups = None
        self._model = None
        self.executed = None
        npu.empty_cache()
