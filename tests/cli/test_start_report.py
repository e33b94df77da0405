"""What `aloft profile --start` prints of starts; the starting itself is a stand-in."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aloft.cli import start, start_phases
from aloft.cli.errors import UserError

SETTINGS = start.StartSettings(Path("models/some"), "bfloat16", eager=False, repeat=3)
ENTRIES = [
    [start_phases.REST, "", 0.25],
    [start_phases.VLLM, "vllm", 1.0],
    [start_phases.VLLM, "small", 0.015625],
    [start_phases.VLLM, "", 0.234375],
    [start_phases.TORCH, "torch", 2.5],
]


def report(extra: float) -> dict:
    entries = [*ENTRIES, [start_phases.READING, "", extra]]
    return {"total": sum(entry[2] for entry in entries), "entries": entries}


@pytest.fixture
def _three_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "device_line", lambda: "npu:0, CANN")
    reports = iter([report(4.0), report(0.0), report(1.0)])
    monkeypatch.setattr(start, "_measured", lambda settings: start.start_of(next(reports)))


@pytest.mark.usefixtures("_three_starts")
def test_the_table_is_that_of_the_median_and_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert start.profile_start(SETTINGS, as_json=False) == 0
    text = capsys.readouterr().out
    assert text.startswith("npu:0, CANN; some, bfloat16.\n")
    assert "The median of 3 starts of an engine in a fresh process, until it takes requests: 5.00 s (4.00 to 8" in text
    rows = [(line[:44].strip(), *line[44:].split()) for line in text.splitlines()[4:]]
    assert rows == [
        ("import torch", "2500.0", "50.0%"),
        ("of it, importing torch", "2500.0", "50.0%"),
        ("import vllm", "1250.0", "25.0%"),
        ("of it, importing vllm", "1000.0", "20.0%"),
        ("reading weights", "1000.0", "20.0%"),
        ("the rest", "250.0", "5.0%"),
        ("together", "5000.0", "100.0%"),
    ]


@pytest.mark.usefixtures("_three_starts")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert start.profile_start(SETTINGS, as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seconds"] == 5.0 and said["totals"] == [4.0, 5.0, 8.0] and said["settings"]["repeat"] == 3
    assert sum(phase["seconds"] for phase in said["phases"]) == said["seconds"]
    assert said["phases"][1] == {
        "name": "import vllm", "seconds": 1.25, "imports": {"vllm": 1.0, "small": 0.015625},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "Traceback ...\naloft: --block-size must be a multiple of 16.\n",
            r"^--block-size must be a multiple of 16\.$",
        ),
        ("Segmentation fault\n", r"^The engine did not start:\nSegmentation fault$"),
    ],
)
def test_a_start_that_fails_is_told(log: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 1, "", log)
    monkeypatch.setattr(start.subprocess, "run", lambda *arguments, **options: ended)
    with pytest.raises(UserError, match=told):
        start.profile_start(SETTINGS, as_json=False)
