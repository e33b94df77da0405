"""How engine processes start: forked unless that is unsafe or not wanted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aloft import processes

PROGRAM = """
import os, sys
from aloft import processes
os.environ.update(dict(pair.split("=") for pair in sys.argv[2:]))
processes.choose_start_method(sys.argv[1] == "in use")
print(os.environ.get(processes.METHOD))
"""


@pytest.mark.parametrize(
    ("device", "given", "later", "wanted"),
    [
        ("free", None, "spawn", "fork"),  # the vllm command presets it
        ("free", "spawn", "spawn", "spawn"),  # the user did
        ("free", "fork", "fork", "fork"),
        ("free", None, None, "None"),  # vLLM's own default is fork
        ("in use", None, None, "spawn"),
        ("in use", "fork", "fork", "spawn"),
    ],
)
def test_start_method(device: str, given: str | None, later: str | None, wanted: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != processes.METHOD}
    if given is not None:
        environment[processes.METHOD] = given
    arguments = [device, *([f"{processes.METHOD}={later}"] if later else [])]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == wanted
