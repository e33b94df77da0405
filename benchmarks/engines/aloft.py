"""vLLM with aloft on whatever Ascend runtime is present."""

from __future__ import annotations

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm  # noqa: F401
from vllm import LLM  # noqa: F401

from engines.vllm_steps import VllmEngine


def load(model: str, precision: str, max_batch: int, max_length: int, threads: int) -> VllmEngine:
    """An engine; `ALOFT_THREADS` (set by the worker's starter) has the threads."""
    return VllmEngine(model, precision, max_batch, max_length)
