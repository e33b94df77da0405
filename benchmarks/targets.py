"""The speeds aloft is meant to reach, and what reports say of them.

targets.py [REPORT.json...]: a table over several reports, the newest that has a figure counting; all of
benchmarks/results where none is named. Each report has the same of its own figures under `targets`:
[{figure, model, batch, prompt, wanted, seen, holds, bound, file}], and share (of the machine's limit); holds is null
where a part is not known, bound says what bounds a figure that misses its target (reasons.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import files
import reasons
from words import share, what

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


def found(target: Target, report: Report) -> dict[str, Any] | None:
    """What a report says of a target; None: it has no such figure."""
    same = _place(target)
    if "reports" in report:  # of several runs: each has been asked by itself
        return next((entry for entry in report["targets"] if same.items() <= entry.items() and entry["file"]), None)
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
    if "bound" not in line:  # of the first reports, whose shares are of another limit
        line = line | {"bound_share": None}
    for least, key in _least(target):
        seen = line.get(key)
        parts.append(None if seen is None else seen >= least)
        if seen is None:
            words.append("no peer" if key == "ratio" else "?")
        else:
            words.append(_seen(seen, least, key) + (f" {line['best_peer']}" if key == "ratio" else ""))
    of_limit = line.get("bound_share")
    near = "" if of_limit is None else f"{share(of_limit)} ({line['bound']})"
    holds = False if False in parts else None if None in parts else True
    why = reasons.why(row, line, _most(target, row, line), report) if holds is False else ""
    return _entry(target, ", ".join(words), holds, why, report.get("file", "this report"), near)


def _seen(seen: float, least: float, key: str) -> str:
    """`1.87 x`, `72.1 %`; with a digit more where rounding would turn a miss into a hit."""
    scale, digits, unit = (1, 2, "x") if key == "ratio" else (100, 1, "%")
    digits += seen < least <= round(seen, digits + len(str(scale)) - 1)
    return f"{scale * seen:.{digits}f} {unit}"


def _place(target: Target) -> dict[str, Any]:
    return {"figure": target.figure, "model": target.model, "batch": target.batch, "prompt": target.prompt}


def _entry(target: Target, seen: str, holds: bool | None, bound: str, file: str, near: str) -> dict[str, Any]:
    said = {"wanted": target.wanted(), "seen": seen, "holds": holds, "bound": bound, "file": file, "share": near}
    return _place(target) | said


def _least(target: Target) -> list[tuple[float, str]]:
    """What is wanted of a ratio line."""
    pairs = ((target.ratio, "ratio"), (target.share, "bound_share"), (target.fma, "fma_share"))
    return [(least, key) for least, key in pairs if least is not None]


def _most(target: Target, row: dict[str, Any], line: dict[str, Any]) -> float | None:
    """The time that would reach all of the target: what it takes now, by the worst of what is missing."""
    missing = [line[key] / least for least, key in _least(target) if line.get(key) is not None]
    if not missing or row["figure"] not in ("decode", "prefill", "step_operators"):
        return target.most
    tokens = row["prompt"] if row["figure"] == "prefill" else row["batch"]
    taken = row["value"] if row["figure"] == "step_operators" else 1e3 * tokens / row["value"]
    return taken * min(missing)


def entries(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Every target, with the first report that has its figure."""
    reports = list(reports)
    answers = ((target, next(filter(None, (found(target, report) for report in reports)), None)) for target in TARGETS)
    return [answer or _entry(target, "not measured", None, "", "", "") for target, answer in answers]


def table(answers: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: every target, and below them what bounds those that do not hold."""
    yield "| figure | at least | seen | holds | share of bound | file |"
    yield "|---|---|---|---|---|---|"
    bounds = []
    for entry in answers:
        holds = "" if entry["holds"] is None else "yes" if entry["holds"] else "**no**"
        words = words_of(entry)
        yield f"| {words} | {entry['wanted']} | {entry['seen']} | {holds} | {entry['share']} | {entry['file']} |"
        bounds += [f"* {words}: {entry['bound']}."] if entry["holds"] is False else []
    if bounds:
        yield from ("", "What bounds those that do not hold, from the rows of the same report:", "", *bounds)


def words_of(entry: dict[str, Any]) -> str:
    """The target's name."""
    return next(target.words() for target in TARGETS if _place(target).items() <= entry.items())


def section(report: Report) -> list[str]:
    """The part of one report: the targets whose figures it has."""
    known = [entry for entry in entries([report]) if entry["file"]]
    return ["", "## Targets", "", *table(known)] if known else []


def main() -> None:
    """Print the table."""
    named = [Path(name) for name in sys.argv[1:]]
    reports = [files.read(file) for file in named or files.dated()]
    print("\n".join(table(entries(sorted(reports, key=lambda report: report["date"], reverse=True)))))


if __name__ == "__main__":
    main()
