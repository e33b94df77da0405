"""Structured output: hide the tokens a request's grammar does not allow next."""

from __future__ import annotations

import numpy as np
import torch
from vllm.v1.core.sched.output import GrammarOutput


def hidden_mask(bitmask: np.ndarray, vocab_size: int) -> np.ndarray:
    """bool ``[n, vocab_size]``, True = hidden, from int32 words ``[n, ceil(V / 32)]`` whose set bits are allowed."""
    words = np.ascontiguousarray(bitmask, dtype="<i4")
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size] == 0


def apply(grammar: GrammarOutput, row_of: dict[str, int], logits: torch.Tensor) -> None:
    """Sets the logits ``[B, V]`` of hidden tokens to -inf, in place; requests that left the batch are skipped."""
    pairs = [(row_of[r], i) for i, r in enumerate(grammar.structured_output_request_ids) if r in row_of]
    if not pairs:
        return
    rows, indices = (list(column) for column in zip(*pairs, strict=True))
    vocab_size = logits.shape[-1]
    words = grammar.grammar_bitmask[indices]
    mask = np.zeros((len(rows), vocab_size), dtype=bool)
    covered = hidden_mask(words, vocab_size)
    mask[:, : covered.shape[1]] = covered
    device_mask = torch.from_numpy(mask).to(logits.device)
    if rows == list(range(logits.shape[0])):
        logits.masked_fill_(device_mask, float("-inf"))
        return
    index = torch.tensor(rows).to(logits.device)
    logits[index] = logits[index].masked_fill_(device_mask, float("-inf"))
