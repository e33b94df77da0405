"""The same equalities with asynchronous streams and random delays (a missing wait shows), contracts enforced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_equal_under_fuzzed_streams_and_strict_contracts():
    env = os.environ | {"ALOFT_STREAMS": "fuzz", "ALOFT_CONTRACT": "strict"}
    tests = Path(__file__).with_name("test_engine_equal.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
