"""`aloft run` runs a program that knows nothing of aloft, training included."""

from __future__ import annotations

from pathlib import Path

from commands import aloft

TRAIN = Path(__file__).with_name("train.py")


def test_training() -> None:
    result = aloft("run", "--devices", "1", "--", "python", str(TRAIN), "npu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.rstrip().endswith("resumed run is identical")


def test_files_loaders_and_processes() -> None:
    result = aloft("run", "--devices", "2", "--", "python", str(TRAIN.with_name("processes.py")))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split() == ["files", "loader", "8.0", "processes"]
