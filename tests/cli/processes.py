"""A script without a word of aloft: files, a loader with workers and pinned memory, processes started three ways."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

PRODUCT = "import torch; print((torch.ones(2, 2, device='npu') @ torch.ones(2, 2, device='npu')).sum().item())"


def save_and_load(folder: Path) -> None:
    file = folder / "tensors.pt"
    saved = {
        "float": torch.randn(3, 4, device="npu"),
        "half, transposed": torch.randn(4, 6, device="npu").half().t(),
        "slice": torch.arange(20, device="npu")[3:9],
        "parameter": torch.nn.Parameter(torch.randn(5, device="npu")),
    }
    torch.save(saved, file)
    for place, want in ((None, "npu"), ("cpu", "cpu"), ("npu", "npu"), (torch.device("npu:1"), "npu"), ({}, "npu")):
        loaded = torch.load(file, map_location=place)
        for name, tensor in saved.items():
            assert loaded[name].device.type == want, (place, name, loaded[name].device)
            assert torch.equal(loaded[name].cpu(), tensor.cpu()), (place, name)
    assert torch.load(file, map_location="npu:1")["float"].device.index == 1
    moved = torch.load(file, map_location={"npu:0": "npu:1"})
    assert moved["float"].device.index == 1
    torch.save({"x": torch.arange(3)}, file)
    assert torch.load(file, map_location="npu")["x"].device.type == "npu"


def loader() -> None:
    numbers = torch.arange(40.0).view(20, 2)
    for workers in (0, 2):
        total = torch.zeros(2, device="npu")
        batches = DataLoader(TensorDataset(numbers), batch_size=6, pin_memory=True, num_workers=workers)
        for (batch,) in batches:
            assert batch.is_pinned()
            total += batch.npu(non_blocking=True).sum(0)
        assert torch.equal(total.cpu(), numbers.sum(0)), (workers, total)


def _child(queue: mp.Queue, device: str) -> None:
    queue.put((torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).sum().item())


def processes() -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(queue, f"npu:{i}")) for i in range(2)]
    for child in children:
        child.start()
    assert [queue.get(timeout=100) for _ in children] == [8.0, 8.0]
    for child in children:
        child.join()
        assert child.exitcode == 0
    done = subprocess.run([sys.executable, "-c", PRODUCT], check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout == "8.0\n"
    pid = os.fork()  # after the device has been used: the child starts anew by exec
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", PRODUCT])
    assert os.waitpid(pid, 0)[1] == 0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_and_load(Path(folder))
    print("files", flush=True)
    loader()
    print("loader", flush=True)
    processes()
    print("processes", flush=True)


if __name__ == "__main__":
    main()
