"""vLLM with aloft on whatever runtime is present, in this process."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path

from engines import Timing

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class AloftEngine:
    """An LLM whose engine is stepped by hand, so that each token's time is known."""

    def __init__(self, model: Path, precision: str, max_batch: int, max_length: int) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM

        self._llm = LLM(
            model=str(model),
            dtype=DTYPES[precision],
            max_model_len=max_length,
            max_num_seqs=max_batch,
            max_num_batched_tokens=max(2048, max_length),
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self._ids = itertools.count()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Timing:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        engine = self._llm.llm_engine
        parameters = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        counts: dict[str, int] = {}
        started = time.perf_counter()
        for prompt in prompts:
            name = str(next(self._ids))
            counts[name] = 0
            engine.add_request(name, TokensPrompt(prompt_token_ids=list(prompt)), parameters)
        first_s, at_first = 0.0, 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                counts[output.request_id] = len(output.outputs[0].token_ids)
            if not first_s and all(counts.values()):
                first_s, at_first = time.perf_counter() - started, sum(counts.values())
        total_s = time.perf_counter() - started
        made = sum(counts.values())
        if made != num_tokens * len(prompts):
            raise RuntimeError(f"{made} tokens instead of {num_tokens * len(prompts)}")
        return Timing(first_s, total_s, made - at_first)


def start(model: Path, precision: str, max_batch: int, max_length: int) -> AloftEngine:
    """Load the model."""
    return AloftEngine(model, precision, max_batch, max_length)
