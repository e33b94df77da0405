"""How much of a decoder layer one operator does, by the number of tokens of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["full", "partial", "blocked"]

#: ``auto``: up to so many tokens the level, above the last one ``blocked``
FULL_TOKENS, PARTIAL_TOKENS = 512, 2048
#: tokens an operator handles at a time where it goes by blocks
BLOCK_ROWS = 512


@dataclass(frozen=True, slots=True)
class Fusion:
    """The level of every step.

    full: ``attention_input`` in front of the attention and ``mlp_block`` behind it, each stage over all tokens.
    partial: ``mlp_block`` in blocks of ``BLOCK_ROWS`` tokens, whose activations then stay in the caches between its
        stages; ``attention_input`` over all of them.
    blocked: both in blocks: what is kept in between does not grow with the step.
    """

    configured: str

    def level(self, tokens: int) -> Level:
        """The level of a step of ``tokens`` tokens."""
        if self.configured != "auto":
            return self.configured  # type: ignore[return-value]
        return "full" if tokens <= FULL_TOKENS else "partial" if tokens <= PARTIAL_TOKENS else "blocked"


def block_rows(level: Level) -> tuple[int, int]:
    """``block_rows`` of ``attention_input`` and of ``mlp_block``; 0: all tokens at once."""
    return (BLOCK_ROWS if level == "blocked" else 0, 0 if level == "full" else BLOCK_ROWS)
