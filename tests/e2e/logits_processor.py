"""A custom logits processor: a request may name the only token it allows."""

from __future__ import annotations

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class OnlyOneToken(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self.only = {}

    @classmethod
    def validate_params(cls, sampling_params):
        pass

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        process_dict_updates(self.only, batch_update, lambda params, _, __: (params.extra_args or {}).get("only"))

    def apply(self, logits):
        for row, token in self.only.items():
            kept = logits[row, token].clone()
            logits[row] = float("-inf")
            logits[row, token] = kept
        return logits
