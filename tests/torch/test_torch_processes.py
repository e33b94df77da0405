"""The route is in place in every process, however torch or torch_npu gets imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp

from aloft.runtime import autoload

USES = "t = torch.ones(2, 2, device='npu'); print((t @ t + torch.eye(2, device='npu')).sum().item())"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ, **environment), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "autoloads"),
    [
        (f"import torch; {USES}", "1"),
        (f"import torch_npu, torch; {USES}", "1"),
        (f"import torch; import torch_npu; {USES}", "0"),
        (f"import torch_npu; import torch; {USES}", "0"),
        ("import importlib.util as u; u.find_spec('torch_npu'); import torch; " + USES, "1"),
    ],
    ids=["torch", "torch_npu first", "no autoload", "no autoload, torch_npu first", "after a look-up"],
)
def test_however_it_is_imported(code: str, autoloads: str) -> None:
    done = run(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoloads)
    assert done.stdout == "10.0\n", done.stderr
    assert "verriding a previously registered kernel" not in done.stderr


def test_nothing_happens_without_autoload() -> None:
    done = run("import torch; print(hasattr(torch, 'npu'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout == "False\n", done.stderr


def _double(queue: mp.Queue, value: torch.Tensor) -> None:
    queue.put(((value.npu() * 2).tolist(), autoload.operators()))


def test_spawned_processes() -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_double, args=(queue, torch.arange(3.0)))
    process.start()
    doubled, operators = queue.get(timeout=120)
    assert doubled == [0, 2, 4] and operators == autoload.operators()
    process.join(60)
    assert process.exitcode == 0


def test_most_of_aten_is_served() -> None:
    assert autoload.virtual()
    assert autoload.operators() > 1000
    autoload.load()  # idempotent
