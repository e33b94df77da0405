"""Reports as files: their names, reading and writing them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
Report = dict[str, Any]


def latest() -> Path:
    """What README.md's table is made from."""
    return RESULTS / "latest.json"


def dated() -> list[Path]:
    """The reports of single runs."""
    return sorted(file for file in RESULTS.glob("2*.json") if not file.name.endswith(".incomplete.json"))


def read(file: Path) -> Report:
    """A report that knows its file's name.

    Raises:
        ValueError: it is not one; names the file.
    """
    try:
        text = file.read_text()
        report = json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from error
    if not isinstance(report, dict) or not {"date", "rows", "ratios"} <= set(report):
        raise ValueError(f"{file.name} is no report: it has to have date, rows and ratios")
    if "file" not in report and "reports" not in report:
        name = file.name
        if file.name == "latest.json":  # older ones are copies of a report
            name = next((other.name for other in file.parent.glob("2*.json") if other.read_text() == text), name)
        report["file"] = name
    return report


def unused(now: datetime.datetime, processor: str, label: str = "") -> Path:
    """`<date>-<processor>-<label or time>.json`, with a number behind it where there is such a file already."""
    stem = f"{now:%Y-%m-%d}-{processor}-{label or format(now, '%H%M')}"
    number, file = 1, RESULTS / f"{stem}.json"
    while file.exists():
        number += 1
        file = RESULTS / f"{stem}-{number}.json"
    return file


def save(report: Report, file: Path, page: str) -> None:
    """The report and its page, each whole or not at all: a run of hours must not end in half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, text in ((file, json.dumps(report, indent=1) + "\n"), (file.with_suffix(".md"), page)):
        part = name.with_name(name.name + ".part")
        part.write_text(text)
        part.replace(name)
