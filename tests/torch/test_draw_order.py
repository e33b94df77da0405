"""Random numbers go to operators in the order of the host's program, whatever the streams do, in every stream mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "draw_order.py"


@pytest.mark.parametrize("streams", ["inline", "async", "fuzz"])
def test_draws_are_taken_at_launch(streams: str) -> None:
    environment = dict(os.environ, ALOFT_STREAMS=streams)
    done = subprocess.run(
        [sys.executable, PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "in order\n", done.stdout + done.stderr[-3000:]
