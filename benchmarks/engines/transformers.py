"""transformers: the model's own forward with its default cache, as `generate` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM  # absolute: the installed package, not this module

from engines import Tokens

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "fp32": torch.float32}


class TransformersEngine:
    """Prompts of a batch have one length, so no padding is needed."""

    def __init__(self, model: str, precision: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[precision]).eval()
        self._cache: Any = None
        self._last: torch.Tensor = torch.empty(0)

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values
        self._last = out.logits[:, -1].argmax(-1, keepdim=True)
        return self._last

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tokens:
        self._cache = None
        return self._forward(torch.tensor([list(prompt) for prompt in prompts])).tolist()

    def decode(self, steps: int) -> Tokens:
        made = [self._forward(self._last) for _ in range(steps)]
        return torch.cat(made, 1).tolist()

    def end(self) -> None:
        self._cache = None


def load(model: str, precision: str, max_batch: int, max_length: int, threads: int) -> TransformersEngine:
    """The model in memory."""
    return TransformersEngine(model, precision, threads)
