"""What aloft does not serve is refused when the engine starts, by vLLM's own entry point, naming the flag."""

from __future__ import annotations

import shutil

import pytest
from inprocess import start

from aloft.errors import NotEnoughMemory


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"enable_lora": True}, "--enable-lora"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            "--speculative-config",
        ),
        ({"runner": "pooling"}, "--runner"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype must be auto, bfloat16, fp8 or fp8_e4m3, not fp8_e5m2"),
        ({"kv_cache_dtype": "float16"}, "--kv-cache-dtype must be auto, bfloat16, fp8 or fp8_e4m3, not float16"),
        ({"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["0"]}, "--kv-cache-dtype-skip-layers"),
        ({"kv_cache_dtype": "fp8", "disable_hybrid_kv_cache_manager": True}, "--disable-hybrid-kv-cache-manager"),
        ({"kv_cache_dtype": "fp8", "additional_config": {"graph_attention": "host"}}, "graph_attention 'host'"),
        ({"kv_cache_dtype": "fp8", "additional_config": {"kv_fp8_window": -1}}, "kv_fp8_window must be 0 or more"),
        ({"cpu_offload_gb": 1}, "--cpu-offload-gb"),
        ({"offload_group_size": 2}, "--offload-group-size"),
        ({"kv_offloading_size": 1}, "--kv-offloading-size"),
        ({"profiler_config": {"profiler": "torch", "torch_profiler_dir": "/tmp"}}, "--profiler-config"),
        ({"weight_transfer_config": {"backend": "nccl"}}, "--weight-transfer-config"),
        ({"block_size": 24}, "--block-size"),
        ({"block_size": 512}, "--block-size"),
        ({"additional_config": {"weight_nz_mod": 1}}, "weight_nz_mode"),
        ({"additional_config": {"num_threads": "two"}}, "num_threads"),
        ({"attention_backend": "FLASH_ATTN"}, "--attention-backend"),
    ],
)
def test_refused(model, engines, changes, named):
    engines("whole")  # vLLM's process groups exist from here on, whichever test runs first
    with pytest.raises(Exception, match=named) as raised:
        start(model, **changes)
    assert isinstance(raised.value, ValueError), type(raised.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gpu_memory_utilization": 0.001, "num_gpu_blocks_override": None}, "--gpu-memory-utilization"),
        ({"kv_cache_memory_bytes": 1 << 50, "num_gpu_blocks_override": None}, "--kv-cache-memory-bytes"),
    ],
)
def test_too_little_memory_is_one_sentence(model, engines, changes, named):
    engines("whole")
    with pytest.raises(NotEnoughMemory, match=named) as raised:
        start(model, **changes)
    assert str(raised.value).count("GiB") >= 2 and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_gpu_blocks_override": 1}, "--num-gpu-blocks-override 1 "),
        ({"num_gpu_blocks_override": 0}, "--num-gpu-blocks-override 0 "),
        ({"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 1000}, "--kv-cache-memory-bytes 1000 "),
        ({"num_gpu_blocks_override": None, "additional_config": {"kv_cache_tokens": 1}}, "kv_cache_tokens 1 "),
    ],
)
def test_a_limit_below_one_sequence_is_named(model, engines, changes, named):
    engines("whole")
    with pytest.raises(NotEnoughMemory, match=named) as raised:
        start(model, **changes)
    assert "512 tokens" in str(raised.value) and "--max-model-len" in str(raised.value)


def test_damaged_weights_are_named(model, engines, tmp_path):
    engines("whole")
    broken = shutil.copytree(model, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        start(broken)


def test_accepted_although_nothing_is_captured(model, engines):
    """Flags of graph mode and of other platforms' tuning start an engine all the same."""
    llm = start(
        model,
        enforce_eager=True,
        compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8]},
        additional_config={"enable_kv_nz": True, "weight_nz_mode": 0},
        max_num_seqs=4,
    )
    (output,) = llm.generate(["hello there"], use_tqdm=False)
    assert output.outputs[0].token_ids
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    assert worker.model_runner.graphs is None


def test_the_cache_is_no_larger_than_the_requests_can_use(model, engines):
    llm = start(model, num_gpu_blocks_override=None, max_num_seqs=4)
    blocks = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    assert 4 * 512 // 16 <= blocks <= 4 * 512 // 16 + 2
    limited = start(model, num_gpu_blocks_override=None, additional_config={"kv_cache_tokens": 1024})
    assert 1024 // 16 <= limited.llm_engine.vllm_config.cache_config.num_gpu_blocks <= 1024 // 16 + 2
