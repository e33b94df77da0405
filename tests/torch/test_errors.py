"""Mistakes raise on the NPU what they raise on the CPU, and nothing is computed across devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_npu

MISTAKES: dict[str, Callable[[str], object]] = {
    "broadcast": lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    "matmul": lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 5, device=d),
    "bmm batches": lambda d: torch.bmm(torch.ones(2, 4, 8, device=d), torch.ones(1, 8, 3, device=d)),
    "bmm left batches": lambda d: torch.bmm(torch.ones(1, 4, 8, device=d), torch.ones(2, 8, 3, device=d)),
    "bmm matrices": lambda d: torch.bmm(torch.ones(4, 8, device=d), torch.ones(8, 3, device=d)),
    "baddbmm batches": lambda d: torch.ones(2, 4, 3, device=d).baddbmm_(
        torch.ones(2, 4, 8, device=d), torch.ones(1, 8, 3, device=d)
    ),
    "index": lambda d: torch.ones(3, device=d)[5],
    "index tensor": lambda d: torch.ones(3, device=d)[torch.tensor([7], device=d)],
    "dim": lambda d: torch.ones(3, device=d).sum(4),
    "dtype": lambda d: torch.ones(3, dtype=torch.int64, device=d).add_(torch.ones(3, device=d)),
    "cat": lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]),
    "empty max": lambda d: torch.ones(0, device=d).max(),
    "argmax": lambda d: torch.ones(2, 0, device=d).argmax(1),
    "softmax dim": lambda d: torch.ones(2, device=d).softmax(3),
    "topk": lambda d: torch.ones(2, device=d).topk(5),
    "gather": lambda d: torch.ones(2, 2, device=d).gather(0, torch.tensor([[9]], device=d)),
    "embedding": lambda d: torch.nn.functional.embedding(torch.tensor([9], device=d), torch.ones(3, 2, device=d)),
    "conv": lambda d: torch.nn.functional.conv2d(torch.ones(1, 2, 3, 3, device=d), torch.ones(1, 3, 2, 2, device=d)),
    "inverse": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "overlap": lambda d: torch.ones(1, device=d).expand(4).add_(1),
    "out dtype": lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.ones(2, dtype=torch.bool, device=d)),
    "view": lambda d: torch.ones(6, device=d).view(4, 2),
    "none": lambda d: torch.add(torch.ones(2, device=d), None),
    "item": lambda d: torch.ones(2, device=d).item(),
    "bool": lambda d: bool(torch.ones(2, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.zeros(3, device=d), 1),
    "leaf": lambda d: torch.ones(2, device=d, requires_grad=True).add_(1),
    "loss target": lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.tensor([0, 9], device=d)
    ),
}


# Indices that the library reads: asynchronous streams report them later, as a RuntimeError of the runtime.
LATE = {"gather"}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_raises_what_the_cpu_raises(mistake: str) -> None:
    if mistake in LATE and os.environ.get("ALOFT_STREAMS", "inline") != "inline":
        with pytest.raises(RuntimeError, match="out of bounds"):
            MISTAKES[mistake]("npu"), torch.npu.synchronize()
        return
    with pytest.raises(Exception) as wanted:
        MISTAKES[mistake]("cpu")
    with pytest.raises(Exception) as got:
        MISTAKES[mistake]("npu")
    assert got.type is wanted.type, got.value


ACROSS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda a, b: a + b,
    "in place": lambda a, b: b.add_(a),
    "out": lambda a, b: torch.add(a, a, out=b),
    "matmul": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
}


@pytest.mark.parametrize("other", ["cpu", "npu:1"])
@pytest.mark.parametrize("work", ACROSS)
def test_two_devices_are_refused(work: str, other: str) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        ACROSS[work](torch.ones(2, 2, device="npu"), torch.ones(2, 2, device=other))


def test_what_may_lie_on_the_host() -> None:
    x = torch.arange(4.0, device="npu")
    assert (x + torch.tensor(1.0)).cpu().tolist() == [1, 2, 3, 4]
    assert x[torch.tensor([1, 3])].cpu().tolist() == [1, 3]
    x[torch.tensor([0])] = torch.tensor(9.0)
    assert x.cpu().tolist() == [9, 1, 2, 3]


def test_layouts_that_are_not_served() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(2, 2, device="npu").to_sparse()
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(2, 2, device="npu").to_mkldnn()
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.quantize_per_tensor(torch.ones(2, device="npu"), 0.1, 0, torch.qint8)


def test_a_failed_operator_leaves_the_device_usable() -> None:
    x = torch.ones(3, device="npu")
    for _ in range(3):
        with pytest.raises(RuntimeError):
            x + torch.ones(4, device="npu")
    assert (x + 1).cpu().tolist() == [2, 2, 2]
    torch.npu.synchronize()


def test_the_profiler_says_that_it_collects_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # torch_npu leaves a folder where the program runs
    trace = tmp_path / "trace.json"
    with torch_npu.profiler.profile() as profile:
        got = (torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")).cpu()
    profile.export_chrome_trace(str(trace))
    assert torch.equal(got, torch.full((2, 2), 2.0))
    said = "".join(capfd.readouterr())
    assert "Call start failed" in said and "aclprofInit" in said
    assert not trace.exists()
