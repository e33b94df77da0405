"""The generic route inside captured graphs: nothing runs at capture, replays read the captured addresses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


def captured(work: Callable[[], object]) -> tuple[torch.npu.NPUGraph, object]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = work()
    return graph, result


def test_capture_does_not_compute_and_replay_reads_inputs_again() -> None:
    x, total = torch.ones(4, device="npu"), torch.zeros(4, device="npu")

    def work() -> tuple[torch.Tensor, ...]:
        y = x * 2 + 1
        total.add_(y)
        high, at = torch.stack([y, -y]).max(0)
        return y, high, at, y.view(2, 2).t(), torch.cat([y, total])

    graph, (y, high, at, turned, both) = captured(work)  # type: ignore[misc]
    assert total.cpu().tolist() == [0] * 4, "an in-place operator ran while it was captured"
    for value in (3.0, -4.0):
        x.fill_(value)
        total.zero_()
        graph.replay()
        graph.replay()
        want = value * 2 + 1
        assert y.cpu().tolist() == [want] * 4
        assert high.cpu().tolist() == [abs(want)] * 4 and at.cpu().tolist() == [int(want < 0)] * 4
        assert turned.cpu().tolist() == [[want] * 2] * 2
        assert both.cpu().tolist() == [want] * 4 + [2 * want] * 4


def test_out_forms_and_lists() -> None:
    x, out, wrong = torch.arange(4.0, device="npu"), torch.empty(4, device="npu"), torch.empty(0, device="npu")
    weights = [torch.ones(2, device="npu"), torch.ones(3, device="npu")]

    def work() -> list[torch.Tensor]:
        torch.add(x, 1, out=out)
        torch.mul(x, 2, out=wrong)
        torch._foreach_add_(weights, 0.5)
        return torch._foreach_mul(weights, 2)

    graph, doubled = captured(work)
    assert wrong.shape == (4,)
    x += 10
    graph.replay()
    assert out.cpu().tolist() == [11, 12, 13, 14]
    assert wrong.cpu().tolist() == [20, 22, 24, 26]
    assert [w.cpu().tolist() for w in weights] == [[1.5] * 2, [1.5] * 3]
    assert [d.cpu().tolist() for d in doubled] == [[3.0] * 2, [3.0] * 3]  # type: ignore[attr-defined]


def test_host_arguments_are_captured_by_value() -> None:
    x, number, index = torch.ones(3, device="npu"), torch.tensor(2.0), torch.tensor([0, 2])
    graph, y = captured(lambda: (x * number)[index])
    number.fill_(100)
    index.fill_(1)
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    assert y.cpu().tolist() == [2, 6]  # type: ignore[attr-defined]


def test_pinned_memory_is_captured_by_address() -> None:
    given, taken = (torch.zeros(3, pin_memory=True) for _ in range(2))
    x = torch.zeros(3, device="npu")

    def work() -> torch.Tensor:
        x.copy_(given, non_blocking=True)
        y = x + 1
        taken.copy_(y, non_blocking=True)
        return y

    graph, _ = captured(work)
    for value in (5.0, 7.0):
        given.fill_(value)
        graph.replay()
        torch.npu.synchronize()
        assert taken.tolist() == [value + 1] * 3


def test_a_model_with_its_library_calls() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    ).eval()
    x = torch.randn(2, 3, 6, 6)
    want = model(x).detach()
    model.npu()
    static = torch.zeros(2, 3, 6, 6, device="npu")
    with torch.no_grad():
        graph, y = captured(lambda: model(static).softmax(-1))
    static.copy_(x)
    graph.replay()
    torch.testing.assert_close(y.cpu(), want.softmax(-1))  # type: ignore[attr-defined]


def test_random_operators_draw_anew_at_each_replay() -> None:
    torch.npu.manual_seed(1)
    graph, y = captured(lambda: torch.nn.functional.dropout(torch.ones(100, device="npu"), 0.5))
    draws = []
    for seed in (5, 5, 6):
        torch.npu.manual_seed(seed)
        graph.replay()
        draws.append(y.cpu().clone())  # type: ignore[attr-defined]
        graph.replay()
        assert not torch.equal(draws[-1], y.cpu())  # type: ignore[attr-defined]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda x: x.sum().item(), "captur"),
        (lambda x: x.nonzero(), "captur"),
        (lambda x: torch.equal(x, x), "captur"),
        (lambda x: torch.masked_select(x, x > 0), "captur"),
    ],
    ids=["item", "nonzero", "equal", "masked_select"],
)
def test_what_needs_data_is_refused(work: Callable[[torch.Tensor], object], message: str) -> None:
    x = torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match=message):
        captured(lambda: work(x))
    assert (x + 1).cpu().tolist() == [2, 2, 2], "the device serves on after a refused capture"


def test_errors_are_raised_at_capture() -> None:
    x = torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match="broadcast"):
        captured(lambda: x + torch.ones(4, device="npu"))
