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
STRICT = os.environ.get("ALOFT_CONTRACT") == "strict"


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
    x, kept = (torch.full((1000,), 2.0, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 3
        z = torch.exp(y.float())
        index = y.argmax()
        kept.add_(1)
    assert bool(y.isnan().all()) == bool(z.isnan().all()) == STRICT
    assert (index.item() == -1) == STRICT
    assert kept.cpu().eq(2).all() and x.cpu().eq(2).all()
    graph.replay()
    assert y.cpu().eq(6).all() and kept.cpu().eq(3).all() and index.item() == 0
    assert not z.isnan().any()


def poisoned(*tensors: torch.Tensor) -> bool:
    """What nobody has computed shows in every element; asked of the bytes, which need no NaN."""
    return all(bool((t.cpu().reshape(-1).view(torch.uint8) == 0xFF).all()) for t in tensors)


def used_pool() -> tuple[object, list[object]]:
    """A pool whose free memory holds the plausible values of a graph captured earlier."""
    pool, x = torch.npu.graph_pool_handle(), torch.full((1 << 18,), 7.0, device=DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        values = [x[:n] + i for n in (16, 1000, 64000, 1 << 18) for i in range(8)]
    graph.replay()
    assert values[0].cpu().eq(7).all()
    del values
    return pool, [graph, x]


@check
def results_in_the_memory_of_an_earlier_graph_are_poisoned_in_strict_mode() -> None:
    pool, _earlier = used_pool()
    x = torch.full((64, 1000), 2.0, device=DEVICE)
    gamma = torch.ones(1000, device=DEVICE)
    weight = torch.randn(1000, 16, dtype=torch.float16).to(DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        routed = x * 3  # the generic route
        high = routed.argmax(-1)
        several = torch.sort(routed, dim=-1)
        norm, rstd = torch.ops.npu.npu_rms_norm(x, gamma, 1e-6)  # aclnn
        gate = torch.ops.npu.npu_swiglu(x, dim=-1)
        codes, scale = torch.ops.npu.npu_dynamic_quant(x.half())
        product = x.half() @ weight  # aten, implemented natively
        copy = routed.clone()  # device to device
        transposed = routed.t().contiguous()
        zeros = torch.zeros(1 << 18, device=DEVICE)
        greedy = torch.ops.aloft.greedy_tokens(x)
        drawn = torch.rand(1000, device=DEVICE)
        made = [routed, high, *several, norm, rstd, gate, codes, scale, product, copy, transposed, zeros, greedy, drawn]
    if STRICT:
        assert [i for i, t in enumerate(made) if not poisoned(t)] == []
    graph.replay()
    assert routed.cpu().eq(6).all() and copy.cpu().eq(6).all() and transposed.cpu().eq(6).all()
    assert zeros.cpu().eq(0).all() and high.cpu().eq(0).all() and greedy.cpu().eq(0).all()
    assert torch.allclose(norm.cpu(), torch.ones(64, 1000)) and torch.allclose(rstd.cpu(), torch.full((64, 1), 0.5))
    assert torch.equal(product.cpu(), (x.half() @ weight).cpu())
    assert codes.cpu().eq(127).all() and not poisoned(gate, scale)
    first = drawn.cpu()
    graph.replay()
    assert first.ge(0).all() and first.lt(1).all() and not torch.equal(first, drawn.cpu())


@check
def memory_given_for_results_is_poisoned_in_strict_mode() -> None:
    """out= and the destinations of copies and fills are written whole. What surrounds a view stays, host memory too."""
    x = torch.full((100,), 2.0, device=DEVICE)
    half = x[:10].half()
    sums, out, products = (torch.full((100,), 5.0, device=DEVICE) for _ in range(3))
    table = torch.full((10, 10), 5.0, device=DEVICE)
    moved, filled, drawn = (torch.full((100,), 5.0, device=DEVICE) for _ in range(3))
    bounced = torch.full((10,), 5.0, dtype=torch.float16, device=DEVICE)
    pinned = torch.full((100,), 5.0).pin_memory()
    given = [sums, out, products, table[2:4, 1:3], moved, filled, drawn]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch.sum(torch.stack((x, x)), 0, out=sums)
        torch.exp(x, out=out)
        torch.mul(x, 3, out=products)
        table[2:4, 1:3] = x[:4].view(2, 2)
        moved.copy_(x)
        bounced.copy_(half)
        filled.fill_(9)
        drawn.uniform_()
        pinned.copy_(x, non_blocking=True)
    if STRICT:
        assert [i for i, t in enumerate(given) if not poisoned(t)] == []
        assert poisoned(bounced)
    else:
        assert all(t.cpu().eq(5).all() for t in (*given, bounced))
    assert pinned.eq(5).all()
    assert table[:2].cpu().eq(5).all() and table[4:].cpu().eq(5).all() and table[:, 0].cpu().eq(5).all()
    assert table[:, 3:].cpu().eq(5).all()
    graph.replay()
    torch.npu.synchronize()
    assert sums.cpu().eq(4).all() and torch.allclose(out.cpu(), x.cpu().exp()) and products.cpu().eq(6).all()
    assert table[2:4, 1:3].cpu().eq(2).all() and moved.cpu().eq(2).all() and filled.cpu().eq(9).all()
    assert pinned.eq(2).all() and bounced.cpu().eq(2).all() and drawn.cpu().lt(1).all()


@check
def what_a_graph_reads_is_never_poisoned() -> None:
    """In-place operands, caches written in part, results over their own inputs, state that one node reads and a later
    one replaces: their contents are inputs of the graph."""
    pool, _earlier = used_pool()
    x = torch.full((4, 16), 2.0, dtype=torch.float16, device=DEVICE)
    added, over, replaced, filled = (torch.full((4, 16), 5.0, dtype=torch.float16, device=DEVICE) for _ in range(4))
    key_cache, value_cache = (torch.full((2, 8, 1, 16), 5.0, dtype=torch.float16, device=DEVICE) for _ in range(2))
    scattered, indexed, masked = (torch.full((8, 16), 5.0, dtype=torch.float16, device=DEVICE) for _ in range(3))
    slots = torch.tensor([3, 9, 4, 0], dtype=torch.int32, device=DEVICE)
    rows = torch.tensor([1, 3, 5, 7], device=DEVICE)
    both = torch.full((8, 16), 5.0, dtype=torch.float16, device=DEVICE)
    kept = [added, over, replaced, filled, key_cache, value_cache, scattered, indexed, masked, both]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        added.add_(x)
        torch.mul(over, x, out=over)
        seen = replaced + x  # read here,
        replaced.copy_(x)  # replaced here
        filled_before = filled.clone()
        filled.zero_()
        torch_npu._npu_reshape_and_cache(x.view(4, 1, 16), x.view(4, 1, 16), key_cache, value_cache, slots)
        torch_npu.npu_scatter_nd_update_(scattered, rows.view(4, 1), x)
        indexed[rows] = x
        masked.masked_fill_(masked > 100, 0)
        both[1:5].copy_(both[0:4])
    for i, t in enumerate(kept):
        assert t.cpu().eq(5).all(), i
    for i in range(1, 3):
        graph.replay()
        assert added.cpu().eq(5 + 2 * i).all() and over.cpu().eq(5 * 2**i).all()
        assert seen.cpu().eq(7 if i == 1 else 4).all() and replaced.cpu().eq(2).all()
        assert filled_before.cpu().eq(5 if i == 1 else 0).all() and filled.cpu().eq(0).all()
        for cache in (key_cache, value_cache):
            flat = cache.cpu().view(16, 16)
            assert flat[[0, 3, 4, 9]].eq(2).all() and flat[[1, 2, 5, 8, 15]].eq(5).all()
        assert scattered.cpu()[1::2].eq(2).all() and scattered.cpu()[::2].eq(5).all()
        assert indexed.cpu()[1::2].eq(2).all() and indexed.cpu()[::2].eq(5).all()
        assert masked.cpu().eq(5).all() and both.cpu().eq(5).all()


@check
def work_queued_before_a_capture_finds_what_the_capture_will_overwrite() -> None:
    """A capture writes nothing that earlier work still reads: it waits for the work, or leaves the memory alone."""
    x = torch.full((1 << 20,), 2.0, device=DEVICE)
    side, stream = torch.npu.Stream(), torch.npu.Stream()
    for held in (False, True):  # the work waits for something that comes after the capture
        target = torch.full((1 << 20,), 5.0, device=DEVICE)
        total = torch.zeros(1 << 20, device=DEVICE)
        torch.npu.synchronize()
        event = torch.npu.ExternalEvent()
        graph = torch.npu.NPUGraph()
        with torch.npu.stream(side):
            if held:
                event.wait(side)
            for _ in range(40):
                total.add_(target)
        with torch.npu.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            torch.mul(x, 3, out=target)
            graph.capture_end()
        if held:
            event.record(stream)
        torch.npu.synchronize()
        assert total.cpu().eq(200).all()
        assert poisoned(target) == (STRICT and not held)
        graph.replay()
        assert target.cpu().eq(6).all()


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
