"""`aloft profile --start`: where the time of a start goes, phase by phase, each start in a process of its own.

On CANN this has not been tried.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aloft.cli import reason, start_phases
from aloft.cli.engine_flags import EngineFlags, quiet
from aloft.cli.errors import UserError
from aloft.runtime.choice import device_line

_TOLD = 0.01  # imports of a package in a phase are told from this share of the start


@dataclass(frozen=True)
class StartSettings:
    """What to start, and how often."""

    model: Path
    dtype: str
    eager: bool
    repeat: int
    flags: EngineFlags = field(default_factory=EngineFlags)


@dataclass(frozen=True)
class Phase:
    """Seconds of a phase, and those of them that are imports, by package."""

    name: str
    seconds: float
    imports: dict[str, float]


@dataclass(frozen=True)
class Start:
    """One start, from the making of its process until it would take a request; the phases add up to `seconds`."""

    seconds: float
    phases: list[Phase]


def profile_start(settings: StartSettings, as_json: bool) -> int:
    """Print a table, or a JSON object, of the start whose time is the median; return 0.

    Raises:
        UserError: the engine does not start.
    """
    quiet()
    starts = sorted((_measured(settings) for _ in range(settings.repeat)), key=lambda start: start.seconds)
    median = starts[(len(starts) - 1) // 2]
    totals = [start.seconds for start in starts]
    print(json.dumps(_plain(settings, median, totals)) if as_json else "\n".join(_lines(settings, median, totals)))
    return 0


def _measured(settings: StartSettings) -> Start:
    arguments = {"dtype": settings.dtype, "enforce_eager": settings.eager, **settings.flags.arguments()}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        order: dict[str, Any] = {"model": str(settings.model), "arguments": arguments, "report": str(report)}
        order["began"] = time.perf_counter()  # the machine's clock, which the started process reads too
        command = [sys.executable, "-m", "aloft.cli.started", json.dumps(order)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            told = reason.of_log(result.stderr)
            raise UserError(told or f"The engine did not start:\n{result.stderr.strip()}")
        return start_of(json.loads(report.read_text()))


def start_of(report: dict[str, Any]) -> Start:
    """A start from what `aloft.cli.started` wrote."""
    seconds: dict[str, float] = defaultdict(float)
    imports: dict[str, dict[str, float]] = defaultdict(dict)
    for name, package, taken in report["entries"]:
        seconds[name] += taken
        if package:
            imports[name][package] = taken
    assert seconds.keys() <= set(start_phases.PHASES), sorted(seconds)
    named = [name for name in start_phases.PHASES if name in seconds]
    return Start(report["total"], [Phase(name, seconds[name], imports[name]) for name in named])


def _plain(settings: StartSettings, median: Start, totals: list[float]) -> dict[str, Any]:
    return {
        "device": device_line(),
        "settings": {**asdict(settings), "model": str(settings.model)},
        "totals": totals,
        **asdict(median),
    }


def _lines(settings: StartSettings, median: Start, totals: list[float]) -> list[str]:
    which = "One start" if len(totals) == 1 else f"The median of {len(totals)} starts"
    spread = "" if len(totals) == 1 else f" ({totals[0]:.2f} to {totals[-1]:.2f})"
    lines = [
        f"{device_line()}; {settings.model.name}, {settings.dtype}{settings.flags.told()}.",
        f"{which} of an engine in a fresh process, until it takes requests: {median.seconds:.2f} s{spread}.",
        "",
        f"{'phase':<44} {'ms':>9} {'share':>7}",
    ]
    for phase in median.phases:
        lines.append(_row(phase.name, phase.seconds, median.seconds))
        for package, seconds in sorted(phase.imports.items(), key=lambda item: -item[1]):
            if seconds >= _TOLD * median.seconds:
                lines.append(_row(f"    of it, importing {package}", seconds, median.seconds))
    return [*lines, _row("together", sum(phase.seconds for phase in median.phases), median.seconds)]


def _row(name: str, seconds: float, total: float) -> str:
    return f"{name:<44} {1e3 * seconds:>9.1f} {100 * seconds / total:>6.1f}%"
