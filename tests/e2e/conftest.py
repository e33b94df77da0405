"""Engines in this process, one per configuration, shared by all tests; all serve the same tiny model."""

from __future__ import annotations

import pytest
import tiny
from inprocess import ENGINES, scheduler, start


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def engines(model):
    """engines(name) is the LLM of a configuration, started when first asked for."""
    from vllm.config import vllm as vllm_config

    running = {}

    def get(name):
        if name not in running:
            with pytest.MonkeyPatch.context() as patch:
                if name == "v2":
                    patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
                    patch.setattr(vllm_config, "HAS_TRITON", True)  # vLLM's validator asks for it; our runner does not
                running[name] = start(model, **ENGINES[name])
                if name == "v2":
                    assert scheduler(running[name]).use_v2_model_runner
        return running[name]

    return get
