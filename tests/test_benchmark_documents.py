"""What documents and scripts around the benchmarks say and find."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.mark.parametrize("python", [sys.executable, "false"])
def test_kernel_benchmarks_find_the_libraries(tmp_path: Path, python: str) -> None:
    """Where Python finds them, else in the folder of the build, else the script says what to do."""
    command = ["bash", "-c", f'set -e; . {BENCHMARKS}/kernels/library.sh; echo "$lib"']

    def run() -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHON": python}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    if python == "false":
        done = run()
        assert done.returncode == 1 and "make build" in done.stderr and not done.stdout
        (tmp_path / "build" / "some").mkdir(parents=True)
        (tmp_path / "build" / "some" / "libaloft_kernels.so").touch()
    done = run()
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "libaloft_kernels.so").is_file()


def test_documents_name_reports_that_exist() -> None:
    root = BENCHMARKS.parent
    named = {
        name
        for path in (root / "docs").glob("*.md")
        for name in re.findall(r"\b\d{4}-\d\d-\d\d-[\w-]+\.json", path.read_text())
    }
    assert named and {name for name in named if not (BENCHMARKS / "results" / name).exists()} == set()


def test_the_host_times_documented_are_those_of_the_reports() -> None:
    text = (BENCHMARKS.parent / "docs" / "configuration.md").read_text()
    lines = re.findall(
        r"^\| `(2026-[\w-]+\.json)` \| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", text, re.MULTILINE
    )
    assert len(lines) > 1
    for name, runs, *outside, operators in lines:
        rows = json.loads((BENCHMARKS / "results" / name).read_text())["rows"]
        found = {
            (r["figure"], r["batch"]): r for r in rows if r["engine"] == "aloft" and r["figure"].startswith("step_")
        }
        assert [f"{found['step_outside_operators', b]['value']:.2f}" for b in (1, 8, 32)] == outside
        assert ", ".join(f"{found['step_operators', b]['value']:.1f}" for b in (1, 8, 32)) == operators
        assert found["step_operators", 1]["runs"] == int(runs)
