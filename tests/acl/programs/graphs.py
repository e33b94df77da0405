"""Graph capture and replay through torch.npu.graph, in every stream mode."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import torch_npu
from report import check, main

DEVICE = "npu"


@check
def capture_records_and_replay_runs() -> None:
    count = torch.zeros(1, device=DEVICE)
    one = torch.ones(1, device=DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        assert torch.npu.is_current_stream_capturing()
        count.add_(one)
        double = count * 2
    assert not torch.npu.is_current_stream_capturing()
    assert count.item() == 0
    for i in range(1, 6):
        graph.replay()
        assert count.item() == i and double.item() == 2 * i


@check
def results_of_a_capture_are_poisoned_in_strict_mode() -> None:
    """ALOFT_CONTRACT=strict: what a capture has not computed is NaN, or -1, until a replay; nothing else is touched."""
    strict = os.environ.get("ALOFT_CONTRACT") == "strict"
    x, kept = (torch.full((1000,), 2.0, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 3
        z = torch.exp(y.float())
        index = y.argmax()
        kept.add_(1)
    assert bool(y.isnan().all()) == bool(z.isnan().all()) == strict
    assert (index.item() == -1) == strict
    assert kept.cpu().eq(2).all() and x.cpu().eq(2).all()
    graph.replay()
    assert y.cpu().eq(6).all() and kept.cpu().eq(3).all() and index.item() == 0
    assert not z.isnan().any()


@check
def inputs_are_read_at_replay() -> None:
    x = torch.zeros(4, 8, dtype=torch.bfloat16, device=DEVICE)
    gamma = torch.ones(8, dtype=torch.bfloat16, device=DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y, _ = torch_npu.npu_rms_norm(x, gamma, 1e-6)
    for seed in range(3):
        torch.manual_seed(seed)
        host = torch.randn(4, 8, dtype=torch.bfloat16)
        x.copy_(host)
        graph.replay()
        expected = host.float() * torch.rsqrt(host.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        torch.testing.assert_close(y.float().cpu(), expected, atol=2e-2, rtol=2e-2)


@check
def streams_forked_by_events_are_captured_too() -> None:
    x = torch.zeros(8, device=DEVICE)
    side = torch.npu.Stream()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.add_(1)
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = x * 10
        torch.npu.current_stream().wait_stream(side)
        z = y + x
    graph.replay()
    graph.replay()
    assert z.cpu()[0].item() == 22


@check
def host_reads_and_waits_are_refused_while_capturing() -> None:
    x = torch.zeros(1, device=DEVICE)
    graph = torch.npu.NPUGraph()
    refused = []
    with torch.npu.graph(graph):
        x.add_(1)
        for call in (x.item, torch.npu.synchronize, torch.npu.current_stream().synchronize, x.cpu):
            try:
                call()
            except RuntimeError as error:
                refused.append("captured" in str(error))
    assert refused == [True] * 4, refused
    graph.replay()
    assert x.item() == 1


@check
def a_stream_not_joined_back_is_an_error() -> None:
    x = torch.zeros(1, device=DEVICE)
    side = torch.npu.Stream()
    graph = torch.npu.NPUGraph()
    try:
        with torch.npu.graph(graph):
            x.add_(1)
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                x.add_(1)
    except RuntimeError as error:
        assert "not joined" in str(error), error
    else:
        raise AssertionError("no error")


@check
def a_task_group_is_updated_before_and_after_the_replay() -> None:
    query = torch.randn(1, 2, 16, dtype=torch.float16).to(DEVICE)
    key = torch.randn(1, 32, 2 * 16, dtype=torch.float16).to(DEVICE)
    arguments = {"num_heads": 2, "input_layout": "BSH", "scale": 0.25, "num_key_value_heads": 2}
    flat = query.reshape(1, 1, 32)

    def attend(lengths: list[int]) -> torch.Tensor:
        return torch_npu.npu_fused_infer_attention_score(flat, key, key, actual_seq_lengths_kv=lengths, **arguments)[0]

    wanted = {n: attend([n]).cpu() for n in (3, 9, 20, 31)}
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
        flat, key, key, actual_seq_lengths_kv=[31], **arguments
    )
    out, lse = torch.empty_like(flat), torch.empty(1, device=DEVICE)

    def attend_out(lengths: list[int]) -> None:
        torch_npu.npu_fused_infer_attention_score.out(
            flat, key, key, actual_seq_lengths_kv=lengths, workspace=workspace, out=[out, lse], **arguments
        )

    update = torch.npu.Stream()
    event = torch.npu.ExternalEvent()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        attend_out([3])
        handle = torch.npu.graph_task_group_end(stream)

    def refresh(length: int) -> None:
        with torch.npu.stream(update):
            torch.npu.graph_task_update_begin(update, handle)
            attend_out([length])
            torch.npu.graph_task_update_end(update)
            event.record(update)

    for i, length in enumerate((9, 20, 31, 3)):
        if i % 2:
            refresh(length)
            graph.replay()
        else:
            graph.replay()
            refresh(length)
        torch.npu.synchronize()
        torch.testing.assert_close(out.cpu(), wanted[length])


@check
def the_automatic_update_of_host_arguments() -> None:
    query = torch.randn(1, 1, 32, dtype=torch.float16).to(DEVICE)
    key = torch.randn(1, 32, 32, dtype=torch.float16).to(DEVICE)
    arguments = {"num_heads": 2, "input_layout": "BSH", "scale": 0.25, "num_key_value_heads": 2}

    def attend(lengths: list[int]) -> torch.Tensor:
        return torch_npu.npu_fused_infer_attention_score(query, key, key, actual_seq_lengths_kv=lengths, **arguments)[0]

    wanted = {n: attend([n]).cpu() for n in (5, 12)}
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        out = attend([32])
    for length in (5, 12):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [length]}])
        graph.replay()
        torch.npu.synchronize()
        torch.testing.assert_close(out.cpu(), wanted[length])


@check
def random_numbers_differ_between_replays() -> None:
    x = torch.zeros(100, device=DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.normal_()
    graph.replay()
    first = x.cpu()
    graph.replay()
    assert not torch.equal(first, x.cpu())


@check
def graphs_share_a_pool_and_can_be_reset() -> None:
    pool = torch.npu.graph_pool_handle()
    graphs = []
    x = torch.ones(1000, device=DEVICE)
    for scale in (2.0, 3.0):
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, pool=pool):
            y = x * scale
        graphs.append((graph, y, scale))
    for graph, y, scale in graphs:
        graph.replay()
        torch.npu.synchronize()
        assert y.cpu()[0].item() == scale
    for graph, _, _ in graphs:
        graph.reset()


@check
def a_graph_can_be_written_as_a_trace() -> None:
    x = torch.zeros(1, device=DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.add_(1)
        y = x * 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        graph.debug_dump(str(path))
        names = [entry["name"] for entry in json.loads(path.read_text())]
    assert len(names) == 2 and all("add" in n or "mul" in n for n in names), names
    assert y.shape == (1,)


main()
