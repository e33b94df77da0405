"""One report of several runs on one machine: merge.py REPORT.json... [--out FILE] (benchmarks/results/latest.json).

Everything the project measures takes hours, so sessions are run apart, with `run.py --out` or `--label`. Here:

* reports: [{file, date, commit, command, machine, versions, threads, roofline, seconds}], the oldest first; each row,
  ratio, online line and limit has `report`, its place in that list. A merged report can be merged again.
* Of two rows of the same figure, model, engine, weights, precision, batch and prompt the later run's stays.
* A ratio is always one run's own. The later run's stays unless it was measured without the peer that was best before:
  a comparison that left the best engine out must not hide one that did not.
* targets: as each run had them; of a figure with a ratio those of that ratio's run, else of the last run with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import files
import table
import targets
from plan import LEFT_OUT, full
from results import LESS_IS_BETTER
from words import engine, what

Report = dict[str, Any]
Row = dict[str, Any]
PLACE = {"figure", "model", "precision", "batch", "prompt"}
ROW = PLACE | {"engine", "value", "unit"}
ROW_MORE = {"weights", "runs", "min", "max", "report"}
RATIO = PLACE | {"aloft", "best_peer", "best_peer_value", "ratio", "bound_share", "unit"}
RATIO_MORE = {"weights", "peers", "bound", "fma_share", "report"}
RUN = ("file", "date", "commit", "command", "machine", "versions", "threads", "roofline", "seconds")
FIELDS = {*RUN, "rows", "ratios"}
FIELDS_MORE = {"online", "missing", "agreement", "memory_mib", "layer_bytes", "targets", "reports"}
OTHERS = {"imports": "import_", "route": "route_", "steps": "step_", "servers": "server_"}  # rows run.py leaves out

TITLES = [session.title for session in full().sessions]


class OtherMachine(ValueError):
    """Reports of different machines."""


def checked(report: Report, name: str) -> Report:
    """The report, if all its fields are known.

    Raises:
        ValueError: it has others, or lacks some; names the file.
    """
    if "incomplete" in report:
        raise ValueError(f"{name} is of a run that was ended: {report['incomplete']}")
    needed = FIELDS - {"file"} if "reports" in report else FIELDS
    _fields(report, needed, FIELDS | FIELDS_MORE, name)
    for row in report["rows"]:
        _fields(row, ROW, ROW | ROW_MORE, f"a row of {name}")
    for line in report["ratios"]:
        _fields(line, RATIO, RATIO | RATIO_MORE, f"a ratio of {name}")
    return report


def _fields(found: dict[str, Any], needed: set[str], known: set[str], where: str) -> None:
    if lacking := sorted(needed - set(found)):
        raise ValueError(f"{where} lacks {', '.join(lacking)}")
    if unknown := sorted(set(found) - known):
        raise ValueError(f"{where} has unknown fields: {', '.join(unknown)}; known: {', '.join(sorted(known))}")


def merge(paths: Iterable[Path]) -> Report:
    """One report of those in the files.

    Raises:
        ValueError: a file is no report, or they are of different machines; names the files.
    """
    read = [(path.name, checked(files.read(path), path.name)) for path in paths]
    if not read:
        raise ValueError("no reports named")
    _same_machine(read)
    found: dict[tuple[str, ...], Row] = {}  # runs: a file may be a copy of one, or of several
    for _, report in read:
        for run in report.get("reports", [report]):
            found.setdefault(_identity(run), {key: run[key] for key in RUN})
    runs = sorted(found.values(), key=lambda run: run["date"])
    places = {_identity(run): place for place, run in enumerate(runs)}
    parts = [_numbered(report, places) for _, report in read]
    last = runs[-1]
    made: Report = {key: last[key] for key in ("date", "commit", "machine", "versions", "threads")}
    rows = _newest(parts, "rows", lambda row: (*_place(row), row["engine"], row.get("weights", "")))
    ratios = _ratios(parts)
    made |= {
        "command": f"python benchmarks/merge.py {' '.join(run['file'] for run in runs)}",
        "seconds": sum(run["seconds"] for run in runs),
        "reports": runs,
        "roofline": {line["figure"]: line for line in _newest(parts, "limits", lambda line: line["figure"])},
        "missing": _missing(parts, rows),
        "online": _newest(parts, "online", lambda line: (line["engine"], line["rate"])),
        "rows": rows,
        "ratios": ratios,
        "targets": _targets(parts, ratios),
    }
    for name in ("agreement", "memory_mib", "layer_bytes"):
        made[name] = _together(parts, name)
    return made


def _same_machine(read: list[tuple[str, Report]]) -> None:
    first, base = read[0]
    for name, report in read[1:]:
        for key, mine, its in (
            *((key, base["machine"].get(key), report["machine"].get(key)) for key in ("cpu", "cores", "isa")),
            ("threads", base["threads"], report["threads"]),
        ):
            if mine != its:
                raise OtherMachine(f"{first} and {name} are of different machines: {key} is {mine!r} and {its!r}")


def _identity(run: Row) -> tuple[str, ...]:
    return run["date"], run["commit"], run["command"]


def _place(line: Row) -> tuple[Any, ...]:
    return tuple(line[key] for key in ("model", "precision", "figure", "batch", "prompt"))


def _numbered(report: Report, places: dict[tuple[str, ...], int]) -> Report:
    """The report with the places of its lines' runs in the new list."""
    new = [places[_identity(run)] for run in report.get("reports", [report])]
    part: Report = {"newest": max(new), **report}
    lists = {name: report.get(name, []) for name in ("rows", "ratios", "online")}
    lists["limits"] = list(report["roofline"].values())
    for name, lines in lists.items():
        part[name] = [{**line, "report": new[line.get("report", 0)]} for line in lines]
    # the first reports' shares are of another limit (FMA alone, two bytes a weight): not to be put beside the others'
    part["ratios"] = [line if line.get("bound") else {**line, "bound_share": None} for line in part["ratios"]]
    if "reports" not in report:
        part["targets"] = targets.entries([report])
    part["targets"] = [{**entry, "report": new[entry.get("report", 0)]} for entry in part["targets"] if entry["file"]]
    part["missing"] = {
        title: {name: (why, part["newest"]) for name, why in entries.items()}
        for title, entries in report.get("missing", {}).items()
    }
    return part


def _in_order(parts: list[Report], name: str) -> list[Row]:
    """Lines of all parts, the oldest run's first, each in its report's order."""
    return sorted((line for part in parts for line in part[name]), key=lambda line: line["report"])


def _newest(parts: list[Report], name: str, key: Any) -> list[Row]:
    found: dict[Any, Row] = {}
    for line in _in_order(parts, name):
        found.pop(key(line), None)  # its place is among the lines of its run
        found[key(line)] = line
    return sorted(found.values(), key=_order) if name == "rows" else list(found.values())


def _order(line: Row) -> int:
    """Sessions in the order of the whole plan, then what belongs to none."""
    title = f"{line['model']} {line['precision']}"
    return TITLES.index(title) if title in TITLES else len(TITLES)


def _weights(line: Row) -> str:
    """aloft's weights; older reports name them only where a class has several forms."""
    return line.get("weights") or {"16-bit": "bf16", "fp32": "fp32"}.get(line["precision"], "")


def _ratios(parts: list[Report]) -> list[Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for line in _in_order(parts, "ratios"):
        key = (*_place(line), _weights(line))
        before = found.get(key, {}).get("best_peer")
        if before is None or before == line["best_peer"] or before in line.get("peers", {}):
            found.pop(key, None)
            found[key] = line
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for line in found.values():
        groups.setdefault(_place(line), []).append(line)
    for group in groups.values():  # aloft's best form of the weights first, as in a report of one run
        group.sort(key=lambda line: line["aloft"], reverse=group[0]["unit"] not in LESS_IS_BETTER)
    return sorted((line for group in groups.values() for line in group), key=_order)


def _targets(parts: list[Report], ratios: list[Row]) -> list[Row]:
    """The answers of single runs, as the module says."""

    def key(entry: Row) -> tuple[Any, ...]:
        return tuple(entry[name] for name in ("figure", "model", "batch", "prompt"))

    compared = {key(vars(target)) for target in targets.TARGETS if target.ratio or target.share or target.fma}
    run_of = {key(line): line["report"] for line in ratios if line["precision"] == "16-bit" and key(line) in compared}
    found: dict[tuple[Any, ...], Row] = {}
    for entry in _in_order(parts, "targets"):
        if run_of.get(key(entry), entry["report"]) == entry["report"]:
            found[key(entry)] = entry
    return [found.get(key(entry), entry) for entry in targets.entries([])]


def _together(parts: list[Report], name: str) -> dict[str, Any]:
    """Dictionaries, of dictionaries or of values; the later report's entries stay."""
    found: dict[str, Any] = {}
    for part in sorted(parts, key=lambda part: part["newest"]):
        for key, entry in part.get(name, {}).items():
            found[key] = {**found.get(key, {}), **entry} if isinstance(entry, dict) else entry
    return found


def _missing(parts: list[Report], rows: list[Row]) -> dict[str, dict[str, str]]:
    """What no run has measured, with the last run's reason."""
    left: dict[str, dict[str, str]] = {}
    for title, entries in _together(parts, "missing").items():
        stays = {name: why for name, (why, run) in entries.items() if not _measured(title, name, why, run, rows)}
        if stays:
            left[title] = stays
    return left


def _measured(title: str, name: str, why: str, run: int, rows: list[Row]) -> bool:
    """Whether some run has what another one lacks. A failure stays until a later run has a row of that engine."""
    if title == "sessions":
        return any(f"{row['model']} {row['precision']}" == name for row in rows)
    if title == "other figures":
        return any(row["figure"].startswith(OTHERS.get(name, name)) for row in rows)
    if title == "servers":
        mine = [row for row in rows if row["figure"].startswith(OTHERS["servers"])]
    else:
        mine = [row for row in rows if f"{row['model']} {row['precision']}" == title]
        if any(row["engine"] == "aloft" and what(row) == name for row in mine):
            return True
    of_engine = [row for row in mine if engine(row) == name.split(",")[0]]
    return any(why.startswith(LEFT_OUT) or row["report"] > run for row in of_engine)


def main() -> None:
    """Merge files into one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json")
    parser.add_argument("--out", type=Path, default=files.latest(), help="benchmarks/results/latest.json if left out")
    args = parser.parse_args()
    try:
        made = merge(args.reports)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    files.save(made, args.out, table.markdown(made))
    print(f"{args.out}: {len(made['rows'])} rows and {len(made['ratios'])} ratios of {len(made['reports'])} runs")


if __name__ == "__main__":
    main()
