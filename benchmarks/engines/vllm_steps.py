"""A vLLM engine in this process, stepped by hand. Which platform computes is the environment's choice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from engines import Tokens

DTYPES = {"bf16": "bfloat16", "f16": "float16", "fp32": "float32"}


class VllmEngine:
    """`LLM` whose engine makes one step a call."""

    def __init__(self, model: str, precision: str, max_batch: int, max_length: int, **options: Any) -> None:
        from vllm import LLM

        self._llm = LLM(
            model=model,
            dtype=DTYPES.get(precision, "bfloat16"),
            max_model_len=max_length,
            max_num_seqs=max_batch,
            max_num_batched_tokens=max(2048, max_batch),
            enable_prefix_caching=False,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            **options,
        )
        self._engine = self._llm.llm_engine
        self._max_length = max_length
        self._ids = itertools.count()
        self._made: dict[str, list[int]] = {}

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tokens:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        for prompt in prompts:
            name = str(next(self._ids))
            self._made[name] = []
            longest = self._max_length - len(prompt)
            parameters = SamplingParams(temperature=0, max_tokens=longest, ignore_eos=True, detokenize=False)
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=list(prompt)), parameters)
        return self._until(1)

    def decode(self, steps: int) -> Tokens:
        had = {name: len(tokens) for name, tokens in self._made.items()}
        self._until(steps, had)
        return [tokens[had[name] : had[name] + steps] for name, tokens in self._made.items()]

    def end(self) -> None:
        self._engine.abort_request(list(self._made))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        self._made = {}

    def _until(self, count: int, had: dict[str, int] | None = None) -> Tokens:
        waiting = {name: count + (had[name] if had else 0) for name in self._made}
        while waiting:
            for output in self._engine.step():
                tokens = output.outputs[0].token_ids
                self._made[output.request_id] = tokens
                if len(tokens) >= waiting.get(output.request_id, len(tokens) + 1):
                    del waiting[output.request_id]
        return [list(tokens) for tokens in self._made.values()]
