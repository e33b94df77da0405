"""Starts the programs of tests/acl/programs, each once per environment, and hands out their checks as tests."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
MODES = ("inline", "async", "fuzz")


def checks(program: str) -> list[str]:
    """Names of the functions marked `@check` in a program, without running it."""
    tree = ast.parse((PROGRAMS / f"{program}.py").read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(getattr(d, "id", "") == "check" for d in node.decorator_list)
    ]


def environment(**settings: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ALOFT_", "PYTORCH_", "TASK_QUEUE", "ASCEND_RT"))}
    if "ALOFT_LIB_DIR" in os.environ:
        kept["ALOFT_LIB_DIR"] = os.environ["ALOFT_LIB_DIR"]
    return {**kept, "ALOFT_RUNTIME": "virtual", "ALOFT_HOST": f"test-{os.getpid()}", "OMP_NUM_THREADS": "1", **settings}


@functools.cache
def results(program: str, settings: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Check -> what went wrong (empty: nothing) of one run of the program."""
    done = subprocess.run(
        [sys.executable, f"{program}.py"],
        cwd=PROGRAMS,
        env=environment(**dict(settings)),
        capture_output=True,
        text=True,
        timeout=240,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULTS "):
            found: dict[str, str] = json.loads(line.removeprefix("RESULTS "))
            if done.returncode:
                ending = f"exit code {done.returncode}\n{done.stderr[-2000:]}"
                found = {name: text or ending for name, text in found.items()}
            return found
    return dict.fromkeys(checks(program), f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def expect(program: str, name: str, **settings: str) -> None:
    """Fails with the check's own traceback if it did not pass under these settings."""
    text = results(program, tuple(sorted(settings.items())))[name]
    assert not text, text
