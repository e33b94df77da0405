"""OpenVINO GenAI's continuous-batching pipeline on the GGUF file of the model (OpenVINO builds its graph from it)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy
import openvino as ov  # absolute: the installed package, not this module
import openvino_genai as genai

from engines import Tokens

_BLOCK = 32  # tokens of a KV block on CPU, for sizing


class OpenvinoEngine:
    """The pipeline, stepped by hand."""

    def __init__(self, model: str, max_batch: int, max_length: int, threads: int) -> None:
        config = genai.SchedulerConfig()
        config.num_kv_blocks = max_batch * (-(-max_length // _BLOCK) + 1)
        config.max_num_seqs = max_batch
        config.max_num_batched_tokens = max(2048, max_batch)
        config.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline: Any = genai.ContinuousBatchingPipeline(model, config, "CPU", properties)
        self._max_length = max_length
        self._ids = itertools.count()
        self._handles: list[Any] = []
        self._made: Tokens = []

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tokens:
        for prompt in prompts:
            settings = genai.GenerationConfig(max_new_tokens=self._max_length - len(prompt), ignore_eos=True)
            settings.do_sample = False
            ids = ov.Tensor(numpy.array([list(prompt)], dtype=numpy.int64))
            self._handles.append(self._pipeline.add_request(next(self._ids), ids, settings))
            self._made.append([])
        self._until([1] * len(prompts))
        return [list(tokens) for tokens in self._made]

    def decode(self, steps: int) -> Tokens:
        had = [len(tokens) for tokens in self._made]
        self._until([count + steps for count in had])
        return [tokens[count : count + steps] for tokens, count in zip(self._made, had, strict=True)]

    def end(self) -> None:
        for handle in self._handles:
            handle.stop()
        self._pipeline.step()  # lets the pipeline drop what was stopped
        self._handles, self._made = [], []

    def _until(self, wanted: list[int]) -> None:
        while any(len(tokens) < count for tokens, count in zip(self._made, wanted, strict=True)):
            self._pipeline.step()
            for tokens, handle in zip(self._made, self._handles, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        tokens.extend(output.generated_ids)


def load(model: str, precision: str, max_batch: int, max_length: int, threads: int) -> OpenvinoEngine:
    """The pipeline on `threads` cores; the file's name has the precision."""
    return OpenvinoEngine(model, max_batch, max_length, threads)
