"""aloft::greedy_tokens: the arg-max of logits as int32 tokens, one operator where the runtime has it."""

from __future__ import annotations

import torch


def tokens(logits: torch.Tensor) -> torch.Tensor:
    """int32 ``[B, 1]``: the first greatest logit of every row of ``[B, V]``, a NaN before all."""
    operator = getattr(torch.ops.aloft, "greedy_tokens", None)
    if operator is not None and logits.device.type == "npu":
        return operator.default(logits)
    return composite(logits)


def composite(logits: torch.Tensor) -> torch.Tensor:
    """The same in operators every runtime has."""
    return logits.argmax(dim=-1, keepdim=True).to(torch.int32)
