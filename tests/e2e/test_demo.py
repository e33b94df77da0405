"""The demo: a real model answers offline, through the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def test_demo_answers() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-m", "aloft.cli.main", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answer    The capital of France is Paris." in done.stdout
    assert "device    npu:0, virtual (910B3 profile, host CPU; not hardware)" in done.stdout
    assert re.search(
        r"imports \(torch, torch_npu, vllm\) [\d.]+ s, engine start [\d.]+ s, generation [\d.]+ s", done.stdout
    )
