"""The speeds aloft is meant to reach, and what reports say of them.

targets.py [REPORT.json...]: a table over several reports, the newest that has a figure counting; all of
benchmarks/results where none is named. A run's own report has the table of its own figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
SMOL, QWEN = "SmolLM2-135M", "Qwen3-0.6B-shape"
Report = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """What a figure is to reach; None: no matter. ratio: to the best peer at the same precision."""

    figure: str
    batch: int = 0
    prompt: int = 0
    model: str = SMOL
    ratio: float | None = None
    share: float | None = None  # of the machine's bound
    fma: float | None = None  # of the float32 FMA peak
    most: float | None = None  # of the value, in the figure's unit
    less: tuple[str, ...] = ()  # figures of the same report taken off the value first

    def words(self) -> str:
        """`decode, batch 8, after 32 tokens`."""
        from table import what  # which shows our table in its own

        text = what({"figure": self.figure, "batch": self.batch, "prompt": self.prompt})
        text += f", {self.model}" if self.model not in (SMOL, "") else ""
        return text + (f", beyond {' and '.join(self.less).replace('_', ' ')}" if self.less else "")

    def wanted(self) -> str:
        """`2.00 x, 60 % of FMA`."""
        words = [] if self.ratio is None else [f"{self.ratio:.2f} x"]
        words += [] if self.share is None else [f"{100 * self.share:.0f} % of the bound"]
        words += [] if self.fma is None else [f"{100 * self.fma:.0f} % of FMA"]
        words += [] if self.most is None else [f"at most {self.most:g}"]
        return ", ".join(words)


IMPORTS = ("import_torch_with_npu", "import_vllm")
TARGETS = (
    Target("decode", 1, 32, ratio=1.1, share=0.75),
    Target("step_operators", 1, 32, share=0.9),
    Target("decode", 8, 32, ratio=2.0),
    Target("decode", 32, 32, ratio=2.0, fma=0.6),
    Target("prefill", 1, 512, ratio=1.4, fma=0.65),
    Target("decode", 1, 4096, ratio=1.5),
    Target("decode", 1, 32, QWEN, ratio=1.1),
    Target("decode", 8, 32, QWEN, ratio=1.5),
    Target("prefill", 1, 512, QWEN, ratio=1.3),
    Target("time_to_first_token", 1, 32, ratio=1.0),
    Target("step_outside_operators", 1, 32, most=0.7),
    Target("step_outside_operators", 32, 32, most=3.0),
    Target("engine_start", most=6.0),  # its imports are a figure of their own
    Target("server_start", most=8.0, less=IMPORTS),
    Target("route_overhead_hypot_out", model="", most=1.5),
    Target("route_overhead_hypot_functional", model="", most=3.0),
)


def found(target: Target, report: Report) -> tuple[bool | None, str, str] | None:
    """Whether a report's figure reaches a target (None: a part of it is not known), what it is, and how near it is to
    its bound; None: the report has no such figure."""
    same = {"figure": target.figure, "model": target.model, "batch": target.batch, "prompt": target.prompt}
    own = [row for row in report["rows"] if row["engine"] == "aloft" and row["precision"] in ("16-bit", "")]
    row = next((row for row in own if same.items() <= row.items()), None)
    if row is None:
        return None
    value, parts, words = row["value"], list[bool | None](), list[str]()
    if target.less:
        values = {each["figure"]: each["value"] for each in report["rows"] if each["figure"] in target.less}
        if len(values) < len(target.less):
            return None
        value -= sum(values.values())
    if target.most is not None:
        parts.append(value <= target.most)
        words.append(f"{value:.2f} {row['unit']}")
    lines = [line for line in report["ratios"] if line["precision"] == "16-bit" and same.items() <= line.items()]
    line = lines[0] if lines else {}
    for least, key in ((target.ratio, "ratio"), (target.share, "bound_share"), (target.fma, "fma_share")):
        if least is None:
            continue
        seen = line.get(key)
        parts.append(None if seen is None else seen >= least)
        if seen is None:
            words.append("no peer" if key == "ratio" else "?")
        else:
            words.append(f"{seen:.2f} x {line['best_peer']}" if key == "ratio" else f"{100 * seen:.0f} %")
    share = line.get("bound_share")
    bound = "" if share is None else f"{100 * share:.0f} %" + (f" ({line['bound']})" if line.get("bound") else "")
    return False if False in parts else None if None in parts else True, ", ".join(words), bound


def table(reports: Iterable[tuple[str, Report]]) -> Iterator[str]:
    """Lines of Markdown: every target with the first report that has its figure."""
    reports = list(reports)
    yield "| figure | at least | seen | holds | share of bound | file |"
    yield "|---|---|---|---|---|---|"
    for target in TARGETS:
        answers = ((name, found(target, report)) for name, report in reports)
        name, answer = next(((name, answer) for name, answer in answers if answer), ("", None))
        reached, seen, bound = answer or (None, "not measured", "")
        holds = "" if reached is None else "yes" if reached else "**no**"
        yield f"| {target.words()} | {target.wanted()} | {seen} | {holds} | {bound} | {name} |"


def section(report: Report) -> list[str]:
    """The part of one report: the targets whose figures it has."""
    lines = [line for line in table([("this report", report)]) if "| not measured |" not in line]
    return ["", "## Targets", "", *lines] if len(lines) > 2 else []


def main() -> None:
    """Print the table."""
    files = [Path(name) for name in sys.argv[1:]]
    files = files or list(RESULTS.glob("2*.json"))
    reports = {file.name: json.loads(file.read_text()) for file in files}
    newest = sorted(reports.items(), key=lambda item: item[1]["date"], reverse=True)
    print("\n".join(table(newest)))


if __name__ == "__main__":
    main()
