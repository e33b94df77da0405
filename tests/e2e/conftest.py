"""Engines in this process, one per configuration, shared by all tests; all serve the same tiny model."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import pytest
import tiny

WHOLE = {"max_num_batched_tokens": 2048}
CHUNKED = {"max_num_batched_tokens": 32}
# configuration of each engine; "tight" has too few blocks for its requests, so it preempts and resumes
ENGINES = {
    "whole": WHOLE,
    "sync": WHOLE | {"async_scheduling": False},
    "chunked": CHUNKED,
    "tight": CHUNKED | {"num_gpu_blocks_override": 40, "enable_prefix_caching": False},
    "tight_sync": CHUNKED | {"num_gpu_blocks_override": 40, "async_scheduling": False},
    "v2": CHUNKED | {"num_gpu_blocks_override": 40},  # the scheduler speaks the V2 runner's format
}


_alive = []  # an engine that is collected takes vLLM's process groups with it, which all engines here share


def start(model, **changes):
    from vllm import LLM

    settings = {
        "block_size": 16,
        "max_model_len": tiny.MAX_LEN,
        "max_num_seqs": 32,
        "num_gpu_blocks_override": 600,
        "seed": 0,
        "disable_log_stats": False,
    }
    llm = LLM(model=str(model), **(settings | changes))
    _alive.append(llm)
    return llm


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


def core(llm):
    return llm.llm_engine.engine_core.engine_core


def scheduler(llm):
    return core(llm).scheduler


def runner(llm):
    return core(llm).model_executor.driver_worker.worker.model_runner


def free_blocks(llm):
    return scheduler(llm).kv_cache_manager.block_pool.get_num_free_blocks()


def counter(llm, name):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{name}")
