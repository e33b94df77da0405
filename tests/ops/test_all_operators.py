"""The conformance run itself, on the virtual NPU: every operator with a contract, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from aloft.ops.registry import standard


def test_every_operator_conforms() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aloft.ops", "--json"],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "ALOFT_CONTRACT": "strict"},
    )
    rows = json.loads(done.stdout)
    failures = [f"{row['operator']}: {text}" for row in rows for text in row["failures"]]
    assert not failures and done.returncode == 0, "\n".join(failures[:40]) or done.stderr[-2000:]
    assert [row["operator"] for row in rows] == standard().names()
    for row in rows:
        assert row["cases"] == row["passed"] > 0
        assert row["worst_error"] <= row["limit"]
    # Outputs are looked around too: most operators allocate theirs in memory that was poisoned before.
    guarded = [row["operator"] for row in rows if row["guarded_outputs"]]
    assert len(guarded) > len(rows) / 2


def test_a_small_set_in_the_other_modes() -> None:
    for mode in ("warn", "off"):
        done = subprocess.run(
            [sys.executable, "-m", "aloft.ops", "npu_rms_norm", "npu_top_k_top_p", "sort"],
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, "ALOFT_CONTRACT": mode, "ALOFT_ISA": "portable", "ALOFT_STREAMS": "async"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 of 3 operators passed" in done.stdout
