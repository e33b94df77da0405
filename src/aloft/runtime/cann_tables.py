"""Reads the tables that torch_npu's profiler leaves: NOT TRIED on files of a real device.

Columns are found by name, because versions differ in which there are and in what order, and units by what is in
parentheses behind the name. Cells may have blanks and tabs around them, and N/A in them.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aloft.runtime.timing import OperatorTime, OperatorTimes, TimingUnavailable

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "\N{MICRO SIGN}s": 1e-6, "\N{GREEK SMALL LETTER MU}s": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class _Table:
    file: str
    names: tuple[str, ...]  # columns with names, one of which there has to be
    time: str  # column, less its unit
    count: str | None  # column; None: a row is one call


_KERNELS = _Table("kernel_details.csv", ("Name", "Type"), "Duration", None)
_TYPES = _Table("op_statistic.csv", ("OP Type",), "Total Time", "Count")


@dataclass(frozen=True)
class _Row:
    device: str
    name: str
    calls: int
    seconds: float | None  # None: not recorded


def read(folder: Path) -> OperatorTimes:
    """Times of all runs below `folder`, added up by operator.

    `kernel_details.csv` where there is one, else `op_statistic.csv`, which by its documentation lacks collectives. An
    operator has the name of its kernel where that begins with the aclnn function's, as on the virtual NPU, else its
    type, because other kernels' names are often numbered. With several devices the name ends in the device's number.

    Raises:
        TimingUnavailable: a folder, file or column is missing or unusable, or nothing ran; what was found is named.
    """
    outputs = sorted(folder.glob(f"*/{OUTPUT}"))
    if not outputs:
        raise TimingUnavailable(f"torch_npu.profiler left no */{OUTPUT} in {folder}; {_inside(folder)}.")
    rows: list[_Row] = []
    notes: set[str] = set()
    for output in outputs:
        if (output / _KERNELS.file).is_file():
            table = _KERNELS
        elif (output / _TYPES.file).is_file():
            table = _TYPES
            notes.add(f"There was no {_KERNELS.file}: times are by type, from {_TYPES.file}, without collectives.")
        else:
            raise TimingUnavailable(
                f"torch_npu.profiler left no {_KERNELS.file} and no {_TYPES.file} in {output}; {_inside(output)}."
            )
        rows += _rows(output / table.file, table)
    found = _sums([row for row in rows if row.seconds is not None])
    if not found:
        raise TimingUnavailable(f"torch_npu.profiler recorded no operator with a time ({len(rows)} rows without one).")
    if missing := sum(row.seconds is None for row in rows):
        notes.add(f"{missing} of {len(rows)} rows have no time and are left out.")
    found.note = " ".join(sorted(notes))
    return found


def _inside(folder: Path) -> str:
    names = sorted(str(path.relative_to(folder)) for pattern in ("*", "*/*") for path in folder.glob(pattern))
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"found {shown or 'nothing'}, and its own messages are above"


def _sums(rows: list[_Row]) -> OperatorTimes:
    several = len({row.device for row in rows}) > 1
    sums: dict[str, tuple[int, float]] = {}
    for row in rows:
        name = f"{row.name} (device {row.device or '?'})" if several else row.name
        calls, seconds = sums.get(name, (0, 0.0))
        sums[name] = calls + row.calls, seconds + (row.seconds or 0.0)
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return OperatorTimes(OperatorTime(name, calls, seconds, 0.0, 0.0) for name, (calls, seconds) in ordered)


def _rows(path: Path, table: _Table) -> Iterator[_Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.reader(file)
            lines = ([cell.strip() for cell in row] for row in reader)
            filled = (row for row in lines if any(row))
            header = next(filled, [])
            names, time, unit, count, device = _columns(path, table, header)
            for row in filled:
                cells = dict(enumerate(row))  # a row that was cut off has fewer
                where = f"{path.name}, line {reader.line_num}"
                calls = 1 if count is None else _number(cells.get(count, ""), where, table.count)
                seconds = _number(cells.get(time, ""), where, table.time)
                if calls is None:
                    seconds = None
                yield _Row(
                    cells.get(device, "") if device is not None else "",
                    _name([cells.get(index, "") for index in names]),
                    int(calls or 0),
                    None if seconds is None else seconds * unit,
                )
    except (OSError, csv.Error) as error:
        raise TimingUnavailable(f"{path.name} cannot be read: {error}.") from error


def _columns(path: Path, table: _Table, header: Sequence[str]) -> tuple[list[int], int, float, int | None, int | None]:
    """Places of the names, the time (with its unit in seconds), the count and the device."""
    places = {name.casefold(): index for index, name in reversed(list(enumerate(header)))}
    names = [places[name.casefold()] for name in table.names if name.casefold() in places]
    timed = re.compile(re.escape(table.time) + r"\s*\((\w+)\)", re.IGNORECASE)
    times = [(index, found[1].casefold()) for index, name in enumerate(header) if (found := timed.fullmatch(name))]
    times = [(index, unit) for index, unit in times if unit in _SECONDS]
    count = None if table.count is None else places.get(table.count.casefold())
    lacking = [] if names else [" or ".join(table.names)]
    lacking += [] if times else [f"{table.time}(us)"]
    lacking += [table.count] if table.count is not None and count is None else []
    if lacking:
        raise TimingUnavailable(
            f"{path.name} has no column {', no column '.join(lacking)}; its columns: {', '.join(header) or 'none'}."
        )
    return names, times[0][0], _SECONDS[times[0][1]], count, places.get("device_id")


def _number(text: str, where: str, column: str | None) -> float | None:
    """None where nothing was recorded."""
    if text.upper() in {"", "N/A"}:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TimingUnavailable(f"{where}: {column} is {text!r}, not a number from 0 on.")
    return value


def _name(cells: list[str]) -> str:
    known = [cell for cell in cells if cell.upper() not in {"", "N/A"}]
    if not known:
        return "(without a name)"
    return known[0] if known[0].startswith("aclnn") else known[-1]
