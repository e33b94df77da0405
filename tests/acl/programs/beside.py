"""Graphs that are replayed beside the host's thread (inline streams), through torch.npu.NPUGraph and
aloft.runtime.beside. Where that is not available the same graphs are replayed as ever."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import torch
import torch_npu
from report import check, main

from aloft.runtime import beside

DEVICE = "npu"
BESIDE = os.environ["ALOFT_STREAMS"] == "inline"
COUNT = 1 << 20  # elements a slow graph raises
NODES = 60  # times

library = ctypes.CDLL(None)


def replay(graph: torch.npu.NPUGraph) -> int:
    """Beside the host for certain, once that is free: its number."""
    if not BESIDE:
        graph.replay()
        return 0
    while not beside.free():
        pass
    return beside.replay(graph)


def raising(x: torch.Tensor, nodes: int = NODES, pool: object = None) -> torch.npu.NPUGraph:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        for _ in range(nodes):
            x.add_(1)
    return graph


def slow(nodes: int = NODES) -> tuple[torch.Tensor, torch.npu.NPUGraph]:
    x = torch.zeros(COUNT, device=DEVICE)
    return x, raising(x, nodes)


def same(x: torch.Tensor, value: float) -> None:
    assert x.unique().tolist() == [value], (x.unique().tolist(), value)


@check
def it_is_available_where_it_should_be() -> None:
    assert beside.available() == BESIDE
    assert beside.free() == BESIDE


@check
def results_are_those_of_eager_operators() -> None:
    torch.manual_seed(5)
    x = torch.randn(33, 512, dtype=torch.bfloat16).to(DEVICE)
    weights = [torch.randn(512, 512, dtype=torch.bfloat16).div_(20).to(DEVICE) for _ in range(6)]
    gamma = torch.ones(512, dtype=torch.bfloat16, device=DEVICE)

    def network() -> torch.Tensor:
        hidden = x
        for weight in weights:
            normed, _ = torch_npu.npu_rms_norm(hidden, gamma, 1e-6)
            hidden = hidden + torch.nn.functional.silu(normed @ weight)
        return torch.cat([hidden.float().softmax(-1), hidden.cumsum(-1).float()])

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = network()
    for seed in range(30):
        x.copy_(torch.randn(33, 512, generator=torch.Generator().manual_seed(seed)).bfloat16())
        wanted = network().cpu()
        replay(graph)
        assert torch.equal(out.cpu(), wanted), seed


@check
def later_operators_come_after_it() -> None:
    x, graph = slow()
    for i in range(5):
        replay(graph)
        y = x * 2
        same(y, 2 * NODES * (i + 1))
    replay(graph)
    x.zero_()
    replay(graph)
    graph.replay()
    replay(graph)
    same(x, 3 * NODES)


@check
def a_number_read_at_once_is_the_new_one() -> None:
    x, graph = slow()
    for i in range(1, 6):
        replay(graph)
        assert x[-1].item() == i * NODES
    host = torch.zeros(COUNT).pin_memory()
    replay(graph)
    host.copy_(x, non_blocking=True)
    torch.npu.current_stream().synchronize()
    same(host, 6 * NODES)


@check
def queries_say_whether_it_runs() -> None:
    x, graph = slow()
    stream = torch.npu.current_stream()
    replay(graph)
    if BESIDE:
        assert not stream.query() and not beside.free()
    while not stream.query():
        pass
    same(x, NODES)
    event = torch.npu.Event()
    replay(graph)
    event.record()
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()
    same(x, 2 * NODES)


@check
def given_up_it_ends_and_a_later_replay_is_right() -> None:
    x, graph = slow()
    stream = torch.npu.current_stream()
    if BESIDE:
        number = replay(graph)
        beside.give_up(number - 1)  # another engine's, which is over: no effect
        stream.synchronize()
        same(x, NODES)
        x.zero_()
        number = replay(graph)
        beside.give_up(number)
        stream.synchronize()
        assert x.max().item() < NODES
        beside.give_up(number)  # nothing runs
    for _ in range(2):
        x.zero_()
        replay(graph)
        same(x, NODES)


@check
def freed_memory_is_not_reused_under_it() -> None:
    x, graph = slow()
    for i in range(1, 6):
        y = torch.full((COUNT,), 3.0, device=DEVICE)
        replay(graph)
        del y
        z = torch.full((COUNT,), float(i), device=DEVICE)
        same(z, i)
        same(x, i * NODES)
    # Of another stream, which does not wait.
    side = torch.npu.Stream()
    replay(graph)
    with torch.npu.stream(side):
        w = torch.full((COUNT,), 7.0, device=DEVICE)
        side.synchronize()
        same(w, 7)
    same(x, 6 * NODES)


@check
def the_cache_can_be_emptied_under_it() -> None:
    x, graph = slow()
    y = [torch.ones(1 << 22, device=DEVICE) for _ in range(4)]
    replay(graph)
    del y
    torch.npu.empty_cache()
    same(x, NODES)
    replay(graph)
    before = torch.npu.memory_allocated()
    del graph  # its replay keeps what it needs
    torch.npu.empty_cache()
    same(x, 2 * NODES)
    assert torch.npu.memory_allocated() <= before


@check
def an_error_is_told_and_does_not_last() -> None:
    x = torch.zeros(8, device=DEVICE)
    index = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        taken = torch.take(x, index)
        x.add_(1)
    replay(graph)
    assert taken.tolist() == [0.0] * 4 and x.tolist() == [1.0] * 8
    index.fill_(1000)
    for wait in (torch.npu.synchronize, lambda: x.add_(1), x.tolist):
        replay(graph)
        try:
            wait()
            assert not BESIDE
            torch.npu.synchronize()  # where all work is queued, it may be told here only
        except RuntimeError as error:
            assert "take" in str(error) or "index" in str(error), error
        else:
            raise AssertionError("no error")
        torch.npu.synchronize()
        assert x.tolist() == [1.0] * 8
    replay(graph)
    event = torch.npu.Event()
    try:
        event.record()
        event.synchronize()
    except RuntimeError as error:
        assert "take" in str(error) or "index" in str(error), error
    else:
        raise AssertionError("the event knows nothing of it")
    with contextlib.suppress(RuntimeError):  # the stream tells it too
        torch.npu.synchronize()
    index.fill_(1)
    replay(graph)
    assert taken.tolist() == [1.0] * 4 and x.tolist() == [2.0] * 8


@check
def several_streams_keep_their_order() -> None:
    streams = [torch.npu.Stream() for _ in range(3)]
    tensors = [torch.zeros(COUNT // 4, device=DEVICE) for _ in streams]
    graphs = [raising(x, 5) for x in tensors]
    torch.npu.synchronize()
    for turn in range(1, 21):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.npu.stream(stream):
                replay(graph) if turn % 2 else graph.replay()
        for i, (stream, x) in enumerate(zip(streams, tensors, strict=True)):
            if turn % 3 == 0:
                stream.wait_stream(streams[i - 1])
            with torch.npu.stream(stream):
                x.mul_(1)
                x.add_(-5)
    torch.npu.synchronize()
    for x in tensors:
        same(x, 0)
    # One graph on two streams.
    x, graph = slow(20)
    torch.npu.synchronize()
    for _ in range(5):
        replay(graph)
        with torch.npu.stream(streams[0]):
            graph.replay()
    torch.npu.synchronize()
    same(x, 200)


@check
def two_graphs_of_one_pool_take_turns() -> None:
    pool = torch.npu.graph_pool_handle()
    x = torch.ones(COUNT, device=DEVICE)
    graphs = []
    for scale in (2.0, 3.0):
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, pool=pool):
            y = x * scale
            for _ in range(10):
                y.add_(1)
            z = y - 10
        graphs.append((graph, z, scale))
    for _ in range(3):
        for graph, z, scale in graphs:
            replay(graph)
            z = z.clone()
            same(z, scale)


@check
def a_capture_meanwhile_is_unharmed() -> None:
    x, graph = slow()
    y = torch.zeros(16, device=DEVICE)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    replay(graph)
    other = torch.npu.NPUGraph()
    with torch.npu.stream(side):
        other.capture_begin(capture_error_mode="relaxed")
        y.add_(1)
        other.capture_end()
    same(x, NODES)
    other.replay()
    replay(other)
    same(y, 2)


@check
def threads_launch_and_join() -> None:
    x, graph = slow(10)
    torch.npu.synchronize()
    wrong: list[BaseException] = []
    launched = [0, 0, 0]

    def run(number: int) -> None:
        try:
            torch.npu.set_device(0)
            own = torch.zeros(64, 64, device=DEVICE)
            for i in range(30):
                if i % 3 == 0:
                    beside.replay(graph) if BESIDE else graph.replay()
                    launched[number] += 1
                own.add_(1)
                torch.npu.current_stream().synchronize()
                if i % 7 == number and BESIDE:
                    library.aloftSetNumThreads((1, 2, 8)[i % 3])
            same(own, 30)
        except BaseException as error:
            wrong.append(error)

    number = library.aloftNumThreads() if BESIDE else 0
    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if BESIDE:
        library.aloftSetNumThreads(number)
    assert not wrong, wrong
    same(x, 10 * sum(launched))


@check
def only_what_has_that_number_is_given_up() -> None:
    """Whichever thread launched in between: one may have wished to, but launch after another's graph is over."""
    if not BESIDE:
        return
    (x, graph), (_, other) = slow(), slow(2)
    numbers: list[int] = []

    def launches_the_other() -> None:
        torch.npu.set_device(0)
        numbers.append(replay(other))
        torch.npu.synchronize()

    class Between:
        def replay(self) -> None:
            thread = threading.Thread(target=launches_the_other)
            thread.start()
            thread.join()
            while not beside.free():
                pass
            graph.replay()

    mine = beside.replay(Between())  # type: ignore[arg-type]
    beside.give_up(*numbers)
    torch.npu.synchronize()
    same(x, NODES)
    assert len({mine, *numbers, 0}) == 3
    first = replay(graph)
    assert beside.replay(other) in (0, first + 1)  # as ever, unless that is over by now
    beside.give_up(0)
    torch.npu.synchronize()
    same(x, 2 * NODES)


@check
def a_forked_child_leaves_it_alone() -> None:
    x, graph = slow()
    replay(graph)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if BESIDE:
                beside.free()
                beside.give_up(1)
            x.add_(1)
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    same(x, NODES)


main()
x, graph = slow()
replay(graph)  # and the process ends
