"""Tables of a report, in Markdown. `table.py` rewrites README.md's; `table.py --check` says whether that is stale."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import files
import targets
from words import engine, number, share, what

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks: begin (make bench-table) -->", "<!-- benchmarks: end -->"
_DECODE = ((1, 32), (8, 32), (32, 32))  # batch, prompt
_MORE = ((1, 1024), (8, 1024))
_PREFILL = ((1, 128), (1, 512), (1, 2048))
_QUANTIZED = {"prefill": ((1, 512),), "decode": _DECODE}
# What README.md shows of which model and class, the best form of aloft's weights only: 29 lines at most.
README_FIGURES: dict[tuple[str, str], dict[str, tuple[tuple[int, int], ...]]] = {
    ("SmolLM2-135M", "16-bit"): {
        "prefill": _PREFILL,
        "decode": (*_DECODE, *_MORE, (32, 1024), (1, 4096)),
        "time_to_first_token": ((1, 32),),
        "engine_start": ((0, 0),),
        "server_start": ((0, 0),),
    },
    ("Qwen3-0.6B-shape", "16-bit"): {"prefill": ((1, 512),), "decode": (*_DECODE, *_MORE)},
    ("SmolLM2-135M", "fp32"): {"prefill": ((1, 512),), "decode": ((1, 32),)},
    ("SmolLM2-135M", "8-bit"): _QUANTIZED,
    ("SmolLM2-135M", "4-bit"): _QUANTIZED,
}
Row = dict[str, Any]


def comparison(report: Row, lines: list[Row]) -> list[str]:
    """aloft beside the best peer; with the run's number where the report is of several."""
    several = "reports" in report
    out = [
        "| model | weights | figure | aloft | best peer | | ratio | share of bound |" + (" run |" if several else ""),
        "|---|---|---|--:|--:|---|--:|--:|" + ("--:|" if several else ""),
    ]
    for line in lines:
        peer = line["best_peer"] or "none"
        class_ = line["precision"]
        if class_ in ("8-bit", "4-bit") and line.get("weights"):
            class_ += f": {line['weights']}"
        ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}"
        out.append(
            f"| {line['model']} | {class_} | {what(line)} | {number(line['aloft'])} {line['unit']} | "
            f"{number(line['best_peer_value'])} | {peer} | {ratio} | {share(line['bound_share'])} |"
            + (f" {line['report'] + 1} |" if several else "")
        )
    return out


def everything(report: Row) -> list[str]:
    """Every row: a line a figure, a column an engine."""
    rows = [row for row in report["rows"] if row["engine"]]
    names = list(dict.fromkeys(engine(row) for row in rows))
    out = [f"| model | weights | figure | unit | {' | '.join(names)} |", "|---|---|---|---|" + "--:|" * len(names)]
    table: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = (row["model"], row["precision"], what(row), row["unit"])
        table.setdefault(key, {})[engine(row)] = row
    for key, found in table.items():
        cells = [number(found[name]["value"]) if name in found else "" for name in names]
        out.append(f"| {' | '.join(key)} | {' | '.join(cells)} |")
    return out


def machine_line(report: Row, used: set[int] | None = None) -> str:
    """On what, and when where it is one run. used: of several runs those whose limits are meant; all where None."""
    host = report["machine"]
    where = f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB"
    if "reports" not in report:
        return f"{where}; {run_line(report)}{limits([report])}"
    runs = [run for place, run in enumerate(report["reports"]) if used is None or place in used]
    return f"{where}.{limits(runs)}"


def run_line(run: Row) -> str:
    """When, what and where it is written."""
    return f"{run['date'][:10]}, commit {run['commit']}" + (f", `{run['file']}`." if run.get("file") else ".")


def limits(runs: list[Row]) -> str:
    """The machine's limits: of several runs the lowest and the highest."""
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for run in runs:
        for name, each in run.get("roofline", {}).items():
            found.setdefault((name, each["unit"]), []).append((each["value"], each["runs"]))
    words = []
    for (name, unit), values in found.items():
        low, high = (number(pick(value for value, _ in values)) for pick in (min, max))
        span = low if low == high else f"{low} to {high}"
        words.append(f"{name} {span} {unit} ({sum(count for _, count in values)})")
    return f" Measured limits (samples): {', '.join(words)}." if words else ""


def runs(report: Row, used: set[int]) -> list[str]:
    """The runs that lines came from, by their number."""
    if "reports" not in report:
        return []
    lines = [f"* run {place + 1}: {run_line(report['reports'][place])}" for place in sorted(used)]
    return ["", *lines] if lines else []


def not_measured(missing: dict[str, dict[str, str]]) -> list[str]:
    """What is missing, together where the reason is one."""
    out = []
    for title, found in missing.items():
        reasons: dict[str, list[str]] = {}
        for name, why in found.items():
            reasons.setdefault(why, []).append(name)
        out += [f"* {title}: {'; '.join(names)}: {why}" for why, names in reasons.items()]
    return out


def markdown(report: Row) -> str:
    """The whole report."""
    out = ["# Benchmark", "", machine_line(report), "", "## aloft against the best peer", ""]
    out += comparison(report, report["ratios"])
    out += runs(report, set(range(len(report.get("reports", [])))))
    out += targets.section(report)
    out += ["", "## Every engine", "", *everything(report)]
    if report.get("agreement"):
        out += ["", "## Same greedy tokens", "", "| session | engine | leading tokens equal |", "|---|---|---|"]
        for session, engines in report["agreement"].items():
            for name, found in engines.items():
                out.append(f"| {session} | {name} | {found['leading_tokens_equal']} of {found['of']} |")
    if report.get("missing"):
        out += ["", "## Not measured", ""]
        out += not_measured(report["missing"])
    loose = [row for row in report["rows"] if not row["engine"]]
    if loose:
        out += ["", "## Other figures", "", "| figure | value |", "|---|--:|"]
        out += [f"| {row['figure']} | {number(row['value'])} {row['unit']} |" for row in loose]
    if report.get("online"):
        out += ["", "## Online", ""]
        names = [name for name in report["online"][0] if name != "report"]
        out += ["| " + " | ".join(names) + " |", "|---|" + "--:|" * (len(names) - 1)]
        for line in report["online"]:
            cells = [number(v) if isinstance(v, float) else str(v) for v in map(line.get, names)]
            out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def readme_lines(ratios: list[Row]) -> list[Row]:
    """The ratio lines that README.md shows, in its order: of each figure the first, which is aloft's best form."""
    best: dict[tuple[Any, ...], Row] = {}
    for line in ratios:
        key = tuple(line[name] for name in ("model", "precision", "figure", "batch", "prompt"))
        best.setdefault(key, line)
    wanted = (
        (*session, figure, *place)
        for session, figures in README_FIGURES.items()
        for figure, places in figures.items()
        for place in places
    )
    return [best[key] for key in wanted if key in best]


def readme_part(report: Row) -> str:
    """The table of README.md."""
    lines = readme_lines(report["ratios"])
    shown = {(line["model"], line["precision"]) for line in lines}
    rows = [row for row in report["rows"] if (row["model"], row["precision"]) in shown and row["engine"] != "aloft"]
    peers = ", ".join(dict.fromkeys(engine(row) for row in rows)) or "none"
    used = {line["report"] for line in lines if "report" in line}
    words = f"{machine_line(report, used)} Peers in {'these runs' if 'reports' in report else 'this run'}: {peers}."
    return "\n".join([BEGIN, words, "", *comparison(report, lines), *runs(report, used), END])


def wanted() -> tuple[str, str]:
    """README.md as it is, and as it should be.

    Raises:
        ValueError: it has no place for the table.
    """
    text = README.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no place for the table: {BEGIN} ... {END}")
    return text, before + readme_part(files.read(files.latest())) + after


def check() -> None:
    """Raise ValueError where README.md's table is not that of the latest results."""
    text, right = wanted()
    if text != right:
        raise ValueError("README.md's table is not that of benchmarks/results/latest.json: make bench-table")


def main() -> None:
    """Rewrite or check README.md."""
    try:
        check() if "--check" in sys.argv else README.write_text(wanted()[1])
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
