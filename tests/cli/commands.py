"""Running the `aloft` command in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

FAKE_VLLM = Path(__file__).parent / "fake_vllm"


def aloft(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished command."""
    return subprocess.run(
        [sys.executable, "-m", "aloft.cli.main", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def free_port() -> int:
    """A port nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
