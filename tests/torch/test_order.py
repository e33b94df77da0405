"""A host that reads never overtakes the device: slow work on the stream, in every stream mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = """
import torch
torch.manual_seed(0)
x = torch.rand(300_000).view(3, -1)
n = x.npu()
ways = {
    "item": lambda t: t[0, 0].item(),
    "cpu": lambda t: t.cpu()[0, 0].item(),
    "generic": lambda t: (t + 0).cpu()[0, 0].item(),
    "in place": lambda t: t.mul_(1).cpu()[0, 0].item(),
    "tolist": lambda t: t[0, :1].tolist()[0],
    "bool": lambda t: float(bool((t[0, 0] == x[0].max()).all())) * x[0].max().item(),
    "pinned": lambda t: (torch.empty(1, pin_memory=True).copy_(t[0, :1], non_blocking=True),
                         torch.npu.current_stream().synchronize())[0].item(),
    "other stream": lambda t: other(t),
    "nonzero": lambda t: t[0][(t[0] == x[0].max()).nonzero()[0, 0]].item(),
}
def other(t):
    s = torch.npu.Stream()
    s.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(s):
        return (t * 1)[0, 0].item()
want = x[0].max().item()
for name, read in ways.items():
    for _ in range(3):
        # Sorting goes to the device's own operator, which runs on the stream; the memory held other values before.
        held = torch.full((3, 100_000), -1.0, device="npu"); del held
        values, _ = n.sort(descending=True)
        got = read(values)
        assert got == want, (name, got, want)
# A batch of queued work in front of every read.
total = torch.zeros(4, device="npu")
for i in range(300):
    total.add_(1)
    assert total.sum().item() == 4 * (i + 1)
print("in order")
"""


@pytest.mark.parametrize("queue", ["0", "1"])
@pytest.mark.parametrize("streams", ["async", "fuzz"])
def test_reads_are_never_stale(streams: str, queue: str) -> None:
    environment = dict(os.environ, ALOFT_STREAMS=streams, TASK_QUEUE_ENABLE=queue)
    done = subprocess.run(
        [sys.executable, "-c", SLOW], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "in order\n", done.stderr[-2000:]


def test_the_route_in_fuzz_mode_behind_the_task_queue() -> None:
    environment = dict(os.environ, ALOFT_STREAMS="fuzz", TASK_QUEUE_ENABLE="1")
    files = [str(HERE / f"test_{name}.py") for name in ("capture", "torch_copies", "formats", "training")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
