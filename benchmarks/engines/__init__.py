"""Engines under measurement. Each module offers `start(model, precision, max_batch, max_length) -> Engine`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Name on the command line -> module of this package. Imported in the process that measures it, and only there.
ENGINES = {"aloft": "aloft"}


@dataclass(frozen=True)
class Timing:
    """One batch from the first request to the last token, in seconds since its start."""

    first_s: float  # every sequence has its first token
    total_s: float  # every sequence has all its tokens
    tokens_after_first: int  # tokens made between the two, all sequences together


class Engine(Protocol):
    """A loaded model that can be timed."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Timing:
        """Greedily make num_tokens for each prompt (token ids), all at once, ignoring the end-of-text token."""


def load(name: str) -> object:
    """The module of an engine."""
    if name not in ENGINES:
        raise SystemExit(f"unknown engine {name!r}; there are: {', '.join(sorted(ENGINES))}")
    return importlib.import_module(f"engines.{ENGINES[name]}")


def start(name: str, model: Path, precision: str, max_batch: int, max_length: int) -> Engine:
    """Load the model into an engine."""
    return load(name).start(model, precision, max_batch, max_length)  # type: ignore[attr-defined]
