"""How vLLM's engine processes start: forked where that is safe, which saves importing everything once more."""

from __future__ import annotations

import functools
import os
from pathlib import Path

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def choose_start_method(device_in_use: bool) -> None:
    """Sets vLLM's variable for the processes this one will start; a user's own choice of `spawn` stands.

    The `vllm` command presets `spawn`, because a forked process cannot use some accelerators. An npu it can, as long
    as this process has not initialised the device. Other threads are no obstacle: what runs before an engine starts
    are ZeroMQ's, which notice a fork, and ours, which hold nothing.

    Args:
        device_in_use: whether this process has initialised an npu.
    """
    if device_in_use:
        os.environ[METHOD] = "spawn"
    elif os.environ.get(METHOD) == "spawn" and METHOD not in _given():
        os.environ[METHOD] = "fork"


@functools.cache
def _given() -> frozenset[str]:
    """Names of the environment variables this process was started with."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return frozenset(entry.partition(b"=")[0].decode(errors="replace") for entry in entries)
