"""Starting an engine in this process, and looking inside."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import tiny  # after the environment is set

WHOLE = {"max_num_batched_tokens": 2048}
CHUNKED = {"max_num_batched_tokens": 32}
OVERLAP = {"additional_config": {"pipeline_depth": 2}}
SYNC = {"async_scheduling": False}
COUNTED = {"cudagraph_metrics": True}
# configuration of each engine; "tight" has too few blocks for its requests, so it preempts and resumes
ENGINES = {
    "whole": WHOLE | OVERLAP | COUNTED,
    "sync": WHOLE | SYNC | COUNTED,
    "chunked": CHUNKED | OVERLAP,
    "tight": CHUNKED | OVERLAP | {"num_gpu_blocks_override": 40, "enable_prefix_caching": False},
    "tight_sync": CHUNKED | SYNC | {"num_gpu_blocks_override": 40},
    "v2": CHUNKED | OVERLAP | {"num_gpu_blocks_override": 40},  # the scheduler speaks the V2 runner's format
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
