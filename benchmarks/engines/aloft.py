"""vLLM with aloft on whatever Ascend runtime is present."""

from __future__ import annotations

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm  # noqa: F401
from vllm import LLM  # noqa: F401

from engines import HEAD8
from engines.vllm_steps import VllmEngine


def load(model: str, precision: str, max_batch: int, max_length: int, threads: int) -> VllmEngine:
    """An engine; `ALOFT_THREADS` (set by the worker's starter) has the threads. `...-head8`: the head in int8 too."""
    options = {"additional_config": {"lm_head": "int8"}} if precision.endswith(HEAD8) else {}
    return VllmEngine(model, precision.removesuffix(HEAD8), max_batch, max_length, **options)
