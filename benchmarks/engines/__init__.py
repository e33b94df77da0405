"""Engines under measurement: `<name>.py` here, imported only in a worker process of that engine (see worker.py).

Each module has `load(model, precision, max_batch, max_length, threads) -> Engine`. What it imports at its top counts as
imports, what `load` does as the rest of the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Tokens = list[list[int]]
#: ends the precision of an aloft engine whose head is rounded to int8 as well
HEAD8 = "-head8"
#: ends the precision of llama.cpp with its weights rearranged for AMX: where that dies at two tokens, batch 1 only, the
#: prompt token by token (session.py finds out)
REPACKED = "-repacked"


class Engine(Protocol):
    """A loaded model that makes tokens greedily, the end-of-text token ignored, for one batch at a time."""

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tokens:
        """Take the prompts (token ids) and return what was made when every one has its first token."""

    def decode(self, steps: int) -> Tokens:
        """Make `steps` more tokens for each sequence and return them, a list a sequence."""

    def end(self) -> None:
        """Forget the batch."""


@dataclass(frozen=True)
class Kind:
    """An engine in one precision, as it is named in the results."""

    engine: str  # module of this package
    precision: str  # what the module's load() takes: the weights' type
    environment: str = ""  # folder below .venv-peers; empty: aloft's own environment
    form: str = "folder"  # "folder": Hugging Face folder, "gguf": GGUF file, "aloft": what `aloft quantize` makes
    quick: bool = False  # whether `--quick` measures it

    @property
    def name(self) -> str:
        """As reports name it."""
        return f"{self.engine} {self.precision}"


# Precision class -> who competes in it. In a class all weights take the same bits; activations are the engine's choice.
CLASSES: dict[str, tuple[Kind, ...]] = {
    "16-bit": (
        Kind("aloft", "bf16", quick=True),
        Kind("llama_cpp", "f16", "llama_cpp", "gguf", quick=True),
        Kind("llama_cpp", "bf16", "llama_cpp", "gguf"),
        Kind("vllm_cpu", "bf16", "vllm_cpu"),
        Kind("openvino", "f16", "openvino", "gguf", quick=True),
        Kind("transformers", "bf16", "vllm_cpu"),
    ),
    "fp32": (
        Kind("aloft", "fp32"),
        Kind("llama_cpp", "f32", "llama_cpp", "gguf"),
        Kind("vllm_cpu", "fp32", "vllm_cpu"),
        Kind("transformers", "fp32", "vllm_cpu"),
    ),
    "8-bit": (
        Kind("aloft", "w8a16", form="aloft"),
        Kind("aloft", "w8a8-dynamic", form="aloft"),
        Kind("aloft", f"w8a8-dynamic{HEAD8}", form="aloft"),
        Kind("llama_cpp", "q8_0", "llama_cpp", "gguf"),
        Kind("llama_cpp", f"q8_0{REPACKED}", "llama_cpp", "gguf"),
        Kind("openvino", "q8_0", "openvino", "gguf"),
    ),
    "4-bit": (
        Kind("aloft", "w4a16", form="aloft"),
        Kind("aloft", "w4a8", form="aloft"),
        Kind("aloft", f"w4a8{HEAD8}", form="aloft"),
        Kind("llama_cpp", "q4_0", "llama_cpp", "gguf"),
        Kind("llama_cpp", f"q4_0{REPACKED}", "llama_cpp", "gguf"),
        Kind("openvino", "q4_0", "openvino", "gguf"),
    ),
}
