"""Times of operators by name: eager and replayed work, nested launches, what is known of bytes and operations."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from aloft.runtime.cann_timing import CannTimer
from aloft.runtime.timing import OperatorTimes, TimingUnavailable, operator_times


def by_name(times: OperatorTimes) -> dict[str, tuple[int, float, float]]:
    return {entry.name: (entry.calls, entry.bytes, entry.operations) for entry in times}


@pytest.fixture(scope="module")
def operands() -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(24, 40, device="npu", dtype=torch.bfloat16)
    b = torch.randn(40, 56, device="npu", dtype=torch.bfloat16)
    _ = (a @ b).cpu()  # what only happens once
    return a, b


def test_eager_work_is_counted_inside_the_block_only(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = operands
    _ = a @ b
    with operator_times() as times:
        assert not times
        for _ in range(3):
            c = a @ b
        torch.hypot(a, a)
        torch.npu.synchronize()
    _ = a @ b
    found = by_name(times)
    assert c.shape == (24, 56)
    assert found["aclnnMm"] == (3, 3 * 2 * (24 * 40 + 40 * 56 + 24 * 56), 3 * 2 * 24 * 40 * 56)
    assert found["aten::hypot"] == (1, 0, 0)
    assert times.seconds == pytest.approx(sum(entry.seconds for entry in times))
    assert all(entry.seconds > 0 for entry in times)
    assert [entry.seconds for entry in times] == sorted((entry.seconds for entry in times), reverse=True)


def test_each_block_begins_at_nothing(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = operands
    with operator_times() as first:
        _ = a @ b
    with operator_times() as second:
        pass
    with operator_times() as third:
        _ = a @ b
    assert by_name(first)["aclnnMm"][0] == by_name(third)["aclnnMm"][0] == 1
    assert not second


def test_replayed_graphs_are_timed_node_by_node(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = operands
    graph = torch.npu.NPUGraph()
    with operator_times() as capturing, torch.npu.graph(graph):
        c = torch.hypot(a @ b, a @ b)
    assert "aclnnMm" not in by_name(capturing)  # capture runs nothing
    with operator_times() as times:
        for _ in range(5):
            graph.replay()
        torch.npu.synchronize()
    found = by_name(times)
    assert found["aclnnMm"] == (10, 10 * 2 * (24 * 40 + 40 * 56 + 24 * 56), 10 * 2 * 24 * 40 * 56)
    assert found["aten::hypot"][0] == 5
    assert torch.isfinite(c).all()


def test_task_groups_count_what_is_in_them() -> None:
    x = torch.ones(8, device="npu")
    stream = torch.npu.Stream()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=stream):
        torch.npu.graph_task_group_begin(stream)
        y = torch.hypot(x, x)
        torch.npu.graph_task_group_end(stream)
    with operator_times() as times:
        graph.replay()
        torch.npu.synchronize()
    assert by_name(times)["aten::hypot"][0] == 1
    assert y.cpu().tolist() == torch.full((8,), 2.0).sqrt().tolist()


def test_threads_are_counted_together(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = operands

    def work() -> None:
        for _ in range(20):
            _ = a @ b

    threads = [threading.Thread(target=work) for _ in range(3)]
    with operator_times() as times:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.npu.synchronize()
    assert by_name(times)["aclnnMm"][0] == 60


def test_a_failing_operator_leaves_the_timing_usable(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = operands
    with operator_times() as times:
        with pytest.raises(RuntimeError):
            torch.linalg.cholesky(-torch.eye(3, device="npu"))
        _ = a @ b
    assert by_name(times)["aclnnMm"][0] == 1
    assert times.seconds < 10


def test_attention_counts_its_keys_once_and_only_visible_pairs() -> None:
    import torch_npu

    heads, kv_heads, head_dim, length = 4, 2, 16, 24
    query = torch.randn(length, heads * head_dim, device="npu", dtype=torch.bfloat16).view(length, heads, head_dim)
    key = torch.randn(length, kv_heads, head_dim, device="npu", dtype=torch.bfloat16)
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1).npu()
    with operator_times() as times:
        out, _ = torch_npu.npu_fused_infer_attention_score(
            query, key, key, num_heads=heads, num_key_value_heads=kv_heads, input_layout="TND", scale=0.25,
            sparse_mode=3, atten_mask=mask, actual_seq_lengths=[length], actual_seq_lengths_kv=[length],
        )  # fmt: skip
        torch.npu.synchronize()
    (entry,) = [entry for entry in times if "Attention" in entry.name]
    assert out.shape == query.shape
    pairs = length * (length + 1) // 2
    assert entry.operations == 2 * pairs * heads * 2 * head_dim
    assert entry.bytes == 2 * length * (heads + kv_heads) * 2 * head_dim


def test_the_vendors_profiler_takes_what_it_is_given_and_finds_nothing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As far as CANN's timer gets without CANN: the installed torch_npu's session is made, and its failure is told."""
    (tmp_path / "msprof").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    left = r"no \*/ASCEND_PROFILER_OUTPUT .*found [^,]+_ascend_pt"
    with pytest.raises(TimingUnavailable, match=left), CannTimer().times():
        torch.npu.synchronize()
    said = capfd.readouterr()
    assert said.out == "" and "aclprofInit" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["msprof"]
