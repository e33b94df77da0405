"""Memory arithmetic, threads and the parent watch, without an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from aloft.errors import NotEnoughMemory
from aloft.runner import memory, parent, threads


@pytest.fixture
def checkpoint(tmp_path):
    save_file({"a": torch.zeros(1024, 1024), "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    return tmp_path


def test_weights_are_counted_in_the_dtype_they_will_have(checkpoint):
    elements = 1024 * 1024 + 3
    for dtype, size in ((torch.bfloat16, 2), (torch.float32, 4)):
        assert memory.weight_bytes(SimpleNamespace(model=str(checkpoint), dtype=dtype)) == elements * size
    assert memory.weight_bytes(SimpleNamespace(model="some/repo", dtype=torch.bfloat16)) == 0


def test_weights_that_do_not_fit_are_one_sentence(checkpoint, monkeypatch):
    model = SimpleNamespace(model=str(checkpoint), dtype=torch.float32)
    monkeypatch.setattr(memory.npu, "mem_get_info", lambda device: (1 << 20, 1 << 30))
    with pytest.raises(NotEnoughMemory, match=r"need 0\.00 GiB.*0\.00 GiB free.*--dtype") as raised:
        memory.check_weights_fit(model, torch.device("npu:0"))
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(memory.npu, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    memory.check_weights_fit(model, torch.device("npu:0"))


def test_activations_are_a_line_through_two_steps(monkeypatch):
    used = {"peak": 0}
    monkeypatch.setattr(memory.npu, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(memory.npu, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(memory.npu, "max_memory_allocated", lambda device: 1000 + used["peak"])
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=2048),
        model_config=SimpleNamespace(get_vocab_size=lambda: 100),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[]),
    )

    def profile(num_tokens):
        used["peak"] = 5000 + 70 * num_tokens

    assert memory.activation_bytes(config, torch.device("npu:0"), profile) == 5000 + 70 * 2048 + 8 * 100 * 24
    eager = memory.activation_bytes(config, torch.device("npu:0"), profile)
    config.compilation_config.cudagraph_capture_sizes = [4, 16]
    captured = memory.activation_bytes(config, torch.device("npu:0"), profile) - eager
    assert captured == 5000 + 70 * 16 + 70 * 8 + 8 * 100 * 4


@pytest.fixture
def plan(monkeypatch):
    """plan(max_num_seqs=..., ...) is what the KV cache gets on a device of 100 GiB, 10 of which are taken."""
    spec = SimpleNamespace(page_size_bytes=1 << 20, block_size=16, max_memory_usage_bytes=lambda config: 1 << 30)
    monkeypatch.setattr(memory.npu, "mem_get_info", lambda device: (90 << 30, 100 << 30))
    monkeypatch.setattr(memory, "activation_bytes", lambda *args: 5 << 30)

    def plan(max_num_seqs, utilization=0.9, wanted=0, host=False, max_model_len=1024, explicit=None):
        monkeypatch.setattr(memory, "memory_is_host_memory", lambda: host)
        config = SimpleNamespace(
            cache_config=SimpleNamespace(
                kv_cache_memory_bytes=explicit, gpu_memory_utilization=utilization, num_gpu_blocks_override=None
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
            model_config=SimpleNamespace(original_max_model_len=max_model_len, max_model_len=1024),
        )
        return memory.available_for_kv(config, {"a": spec}, torch.device("npu:0"), lambda tokens: None, wanted)

    return plan


def test_the_cache_is_bounded_by_the_requests_the_budget_and_the_host(plan):
    page = 1 << 20
    assert plan(4) == (4 << 30) + page  # four sequences and the null block
    assert plan(1000) == (90 - 10 - 5) << 30  # the budget
    assert plan(1000, host=True) == 4 << 30
    assert plan(1000, host=True, wanted=160_000) == 10_001 * page  # the user's own limit
    assert plan(4, explicit=7 << 30) == 7 << 30


def test_layers_with_blocks_of_other_kinds_take_the_pool_in_turn():
    def spec(block_size, **more):
        return SimpleNamespace(page_size_bytes=100, block_size=block_size, **more)

    assert memory.bytes_per_block({}) == 0
    assert memory.bytes_per_block({"a": spec(16), "b": spec(16)}) == 200
    both = {name: spec(16) for name in "abc"} | {f"{name}.recent": spec(8, sliding_window=9) for name in "abc"}
    assert memory.bytes_per_block(both) == 300
    assert memory.bytes_per_block(both | {"d": spec(16)}) == 400
    assert memory.bytes_per_block({"a": spec(16)} | {name: spec(16, sliding_window=5) for name in "bcdef"}) == 100


def test_a_cache_that_holds_no_sequence_is_one_sentence(plan):
    with pytest.raises(NotEnoughMemory, match=r"needs 1\.00 GiB.*0\.00 GiB.*--max-model-len.*--gpu-memory-util"):
        plan(4, utilization=0.15)
    assert plan(4, utilization=0.15, max_model_len=-1) == 0  # vLLM then fits the length
    with pytest.raises(NotEnoughMemory, match="--kv-cache-memory-bytes"):
        plan(4, explicit=91 << 30)


def test_a_share_follows_the_number_of_engines(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    applied, everyone = [], threads._names
    monkeypatch.setattr(threads, "set_threads", applied.append)
    # Engines of other processes may come and go meanwhile.
    monkeypatch.setattr(threads, "_names", lambda: {n for n in everyone() if n.startswith(f"{os.getpid()}-")})
    before = threads.live_engines()
    first = threads.ThreadShare()
    assert threads.live_engines() == before + 1 and first.count == max(1, 8 // (before + 1))
    second = threads.ThreadShare()
    first._next_poll = 0
    first.poll()
    assert first.count == second.count == max(1, 8 // (before + 2))
    second.close()
    first._next_poll = 0
    first.poll()
    assert first.count == max(1, 8 // (before + 1)) and applied[-1] == first.count
    first.close()
    assert threads.live_engines() == before


@pytest.mark.parametrize(
    ("variable", "set_by_vllm", "fixed"), [("3", "0", 3), ("3", "1", 0), ("", "0", 0), ("x", "0", 0)]
)
def test_a_users_own_thread_count_wins(monkeypatch, variable, set_by_vllm, fixed):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setenv("VLLM_OMP_NUM_THREADS_SET_BY_VLLM", set_by_vllm)
    monkeypatch.setattr(threads, "set_threads", lambda count: None)
    share = threads.ThreadShare()
    assert share.fixed == fixed
    share.close()
    share = threads.ThreadShare(fixed=5)
    assert share.count == 5
    share.close()


def test_a_killed_engine_leaves_no_name():
    """The kernel frees the name with the process. Other engines may come and go meanwhile: only its own name counts."""
    script = "import os, time\nfrom aloft.runner import threads\nthreads.set_threads = lambda count: None\n" + (
        "share = threads.ThreadShare()\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )

    def names_of(pid):
        return [name for name in threads._names() if name.startswith(f"{pid}-")]

    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout.readline() == f"{engine.pid}\n"
        assert len(names_of(engine.pid)) == 1 and threads.live_engines() >= 1
        engine.kill()
        engine.wait(60)
    assert not names_of(engine.pid)


def test_this_process_is_nobodys_engine():
    assert not parent.watch()
    assert parent._waiting_client() is None
