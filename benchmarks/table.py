"""Tables of a report, in Markdown. `table.py` rewrites README.md's; `table.py --check` says whether that is stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import targets

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
LATEST = ROOT / "benchmarks" / "results" / "latest.json"
BEGIN, END = "<!-- benchmarks: begin (make bench-table) -->", "<!-- benchmarks: end -->"
README_FIGURES = {"prefill": (512,), "decode": (32, 1024, 4096)}
Row = dict[str, Any]


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(value: float | None) -> str:
    """As a percentage."""
    return "" if value is None else f"{100 * value:.0f} %"


def what(line: Row) -> str:
    """`decode, batch 8, after 32 tokens`."""
    words = {"step_operators": "operators of a decode step"}.get(line["figure"], line["figure"].replace("_", " "))
    if line["figure"] == "prefill":
        return f"{words} {line['prompt']}"
    if line["batch"]:
        words += f", batch {line['batch']}"
    return words + (f", after {line['prompt']} tokens" if line["prompt"] else "")


def comparison(report: Row, lines: list[Row]) -> list[str]:
    """aloft beside the best peer."""
    out = [
        "| model | weights | figure | aloft | best peer | | ratio | share of bound |",
        "|---|---|---|--:|--:|---|--:|--:|",
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
        )
    return out


def everything(report: Row) -> list[str]:
    """Every row: a line a figure, a column an engine."""
    rows = [row for row in report["rows"] if row["engine"]]
    names = list(dict.fromkeys(f"{row['engine']} {row.get('weights', '')}".strip() for row in rows))
    out = [f"| model | weights | figure | unit | {' | '.join(names)} |", "|---|---|---|---|" + "--:|" * len(names)]
    table: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = (row["model"], row["precision"], what(row), row["unit"])
        table.setdefault(key, {})[f"{row['engine']} {row.get('weights', '')}".strip()] = row
    for key, found in table.items():
        cells = [number(found[name]["value"]) if name in found else "" for name in names]
        out.append(f"| {' | '.join(key)} | {' | '.join(cells)} |")
    return out


def machine_line(report: Row) -> str:
    """What and when."""
    host, limits = report["machine"], report.get("roofline", {})
    facts = ", ".join(f"{name} {number(entry['value'])} {entry['unit']}" for name, entry in limits.items())
    where = f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB"
    line = f"{where}; {report['date'][:10]}, commit {report['commit']}."
    return line + (f" Measured limits: {facts}." if facts else "")


def markdown(report: Row) -> str:
    """The whole report."""
    out = ["# Benchmark", "", machine_line(report), "", "## aloft against the best peer", ""]
    out += comparison(report, report["ratios"])
    out += targets.section(report)
    out += ["", "## Every engine", "", *everything(report)]
    if report.get("agreement"):
        out += ["", "## Same greedy tokens", "", "| session | engine | leading tokens equal |", "|---|---|---|"]
        for session, engines in report["agreement"].items():
            for name, found in engines.items():
                out.append(f"| {session} | {name} | {found['leading_tokens_equal']} of {found['of']} |")
    if report.get("missing"):
        out += ["", "## Not measured", ""]
        out += [f"* {session}: {name}: {why}" for session, e in report["missing"].items() for name, why in e.items()]
    loose = [row for row in report["rows"] if not row["engine"]]
    if loose:
        out += ["", "## Other figures", "", "| figure | value |", "|---|--:|"]
        out += [f"| {row['figure']} | {number(row['value'])} {row['unit']} |" for row in loose]
    if report.get("online"):
        out += ["", "## Online", ""]
        names = list(report["online"][0])
        out += ["| " + " | ".join(names) + " |", "|---|" + "--:|" * (len(names) - 1)]
        for line in report["online"]:
            cells = [number(v) if isinstance(v, float) else str(v) for v in line.values()]
            out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def readme_part(report: Row) -> str:
    """The table of README.md."""
    lines = [line for line in report["ratios"] if line["prompt"] in README_FIGURES.get(line["figure"], ())]
    shown = {(line["model"], line["precision"]) for line in lines}
    rows = [row for row in report["rows"] if (row["model"], row["precision"]) in shown and row["engine"] != "aloft"]
    peers = dict.fromkeys(f"{row['engine']} {row['weights']}" for row in rows)
    words = f"{machine_line(report)} Peers in this run: {', '.join(peers) or 'none'}."
    return "\n".join([BEGIN, words, "", *comparison(report, lines), END])


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
    return text, before + readme_part(json.loads(LATEST.read_text())) + after


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
