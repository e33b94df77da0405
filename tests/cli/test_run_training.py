"""`aloft run` runs a program that knows nothing of aloft, training included."""

from __future__ import annotations

from pathlib import Path

from commands import aloft

TRAIN = Path(__file__).with_name("train.py")


def test_training() -> None:
    result = aloft("run", "--devices", "1", "--", "python", str(TRAIN), "npu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.rstrip().endswith("resumed run is identical")
