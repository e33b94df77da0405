"""How much of a decoder layer one operator does, by the number of tokens of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["full", "partial", "blocked"]

#: ``auto``: up to so many tokens the level, above the last one ``blocked``
FULL_TOKENS, PARTIAL_TOKENS = 512, 2048
#: tokens a blocked operator handles at a time: what it keeps in between does not grow with the step
BLOCK_ROWS = 512


@dataclass(frozen=True, slots=True)
class Fusion:
    """The level of every step.

    full: ``attention_input`` in front of the attention and ``mlp_block`` behind it, each stage over all tokens.
    partial: ``attention_input``; behind the attention operators of their own, but gate, up and SwiGLU are one.
    blocked: as full, in blocks of ``BLOCK_ROWS`` tokens.
    """

    configured: str

    def level(self, tokens: int) -> Level:
        """The level of a step of ``tokens`` tokens."""
        if self.configured != "auto":
            return self.configured  # type: ignore[return-value]
        return "full" if tokens <= FULL_TOKENS else "partial" if tokens <= PARTIAL_TOKENS else "blocked"
