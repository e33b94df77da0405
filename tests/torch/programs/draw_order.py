"""Run by test_draw_order.py in each stream mode: who gets which random numbers."""

from __future__ import annotations

import torch

SHAPE = (64,)


def draw() -> torch.Tensor:
    return torch.rand(SHAPE, device="npu")


def captured() -> tuple[torch.npu.NPUGraph, list[torch.Tensor]]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        # A slow node first: a replay is still running when the host goes on.
        slow = torch.ones(400, 400, device="npu")
        for _ in range(4):
            slow = slow @ slow
        results = [draw(), torch.empty(SHAPE, device="npu").exponential_()]
    return graph, results


def replay_then_eager_on_another_stream() -> None:
    graph, (first, second) = captured()
    one, two = torch.npu.Stream(), torch.npu.Stream()
    torch.npu.synchronize()
    wanted: list[torch.Tensor] = []
    for attempt in range(12):
        torch.npu.manual_seed(3)
        with torch.npu.stream(one):
            graph.replay()
        with torch.npu.stream(two):
            eager = draw()
        offset = torch.npu.default_generators[0].get_offset()
        torch.npu.synchronize()
        got = [first.cpu(), second.cpu(), eager.cpu()]
        assert not torch.equal(got[0], got[2])
        wanted = wanted or got
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), f"attempt {attempt}"
        assert torch.npu.default_generators[0].get_offset() == offset, "a draw was taken after the launch"


def a_replay_that_waits_keeps_its_numbers() -> None:
    """The replay is launched first and runs last: its stream waits for an event recorded after the eager draw."""
    graph, (first, second) = captured()
    one, two = torch.npu.Stream(), torch.npu.Stream()
    torch.npu.synchronize()
    torch.npu.manual_seed(9)
    graph.replay()
    eager = draw()
    torch.npu.synchronize()
    wanted = [first.cpu(), second.cpu(), eager.cpu()]
    for _ in range(4):
        gate = torch.npu.ExternalEvent()
        torch.npu.manual_seed(9)
        gate.wait(one)
        with torch.npu.stream(one):
            graph.replay()
        with torch.npu.stream(two):
            eager = draw()
        gate.record(two)
        torch.npu.synchronize()
        got = [first.cpu(), second.cpu(), eager.cpu()]
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def two_replays_differ_and_seeds_repeat() -> None:
    graph, results = captured()
    runs = []
    for seed in (1, 1, 2):
        torch.npu.manual_seed(seed)
        for _ in range(2):
            graph.replay()
            runs.append([r.cpu() for r in results])
    assert not torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(a, b) for a, b in zip(runs[0] + runs[1], runs[2] + runs[3], strict=True))
    assert not torch.equal(runs[0][0], runs[4][0])


def states_and_captures() -> None:
    """What torch's CUDA graphs do: a capture takes nothing from the generator, replays follow its present state."""
    generator = torch.npu.default_generators[0]
    torch.npu.manual_seed(5)
    draw()
    before = torch.npu.get_rng_state()
    graph, results = captured()
    assert torch.equal(torch.npu.get_rng_state(), before), "the capture advanced the generator"
    graph.replay()
    replayed = [r.cpu() for r in results]
    # The same two draws made eagerly from the same state, and the state after them.
    after = torch.npu.get_rng_state()
    torch.npu.set_rng_state(before)
    eager = [draw().cpu(), torch.empty(SHAPE, device="npu").exponential_().cpu()]
    assert all(torch.equal(a, b) for a, b in zip(replayed, eager, strict=True))
    assert torch.equal(torch.npu.get_rng_state(), after)
    # A state set between replays takes effect at the next launch.
    torch.npu.set_rng_state(before)
    graph.replay()
    assert all(torch.equal(r.cpu(), e) for r, e in zip(results, eager, strict=True))
    torch.npu.manual_seed(6)
    other_seed = torch.npu.get_rng_state()
    torch.npu.set_rng_state(before)
    # Inside a capture: another seed, a read or a write of the offset are errors.
    for forbidden in (
        lambda: torch.npu.manual_seed(77),
        lambda: torch.npu.set_rng_state(other_seed),
        torch.npu.seed,
        generator.get_offset,
        lambda: generator.set_offset(8),
    ):
        broken = torch.npu.NPUGraph()
        try:
            with torch.npu.graph(broken):
                draw()
                forbidden()
        except RuntimeError as error:
            assert "captur" in str(error), error
        else:
            raise AssertionError(f"{forbidden} was allowed inside a capture")
    assert torch.equal(torch.npu.get_rng_state(), before), "a refused capture moved the generator"


def a_generator_of_ones_own() -> None:
    own = torch.Generator("npu")
    own.manual_seed(21)
    graph = torch.npu.NPUGraph()
    graph.register_generator_state(own)
    with torch.npu.graph(graph):
        result = torch.rand(SHAPE, generator=own, device="npu")
    own.manual_seed(21)
    wanted = [torch.rand(SHAPE, generator=own, device="npu").cpu() for _ in range(2)]
    own.manual_seed(21)
    default = torch.npu.get_rng_state()
    for want in wanted:
        graph.replay()
        assert torch.equal(result.cpu(), want)
    assert torch.equal(torch.npu.get_rng_state(), default)


replay_then_eager_on_another_stream()
a_replay_that_waits_keeps_its_numbers()
two_replays_differ_and_seeds_repeat()
states_and_captures()
a_generator_of_ones_own()
print("in order")
