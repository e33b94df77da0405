"""``aloft quantize``: a quantized checkpoint from a bfloat16 model."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aloft.cli.errors import UserError
from aloft.quantizer.mixed import Plan
from aloft.quantizer.run import Progress, Result, Settings
from aloft.quantizer.run import quantize as work

_LINE_SECONDS = 5.0


def quantize(
    model: Path, out: Path, settings: Settings, calibration: Path | None, report: bool, overwrite: bool = False
) -> int:
    """Runs the tool with its progress on standard error; with ``report`` a table of the layers' errors follows."""
    show = _bar() if sys.stderr.isatty() else _lines()
    try:
        with show as progress:
            result = work(model, out, settings, calibration, progress, overwrite)
    except ValueError as error:
        raise UserError(f"{error}.") from error
    except OSError as error:
        raise UserError(f"Cannot write {out}, or read what it is made of: {error}.") from error
    if result.plan is not None:
        _reasons(result.plan, everything=report)
    if report:
        _table(result)
    print(f"{out}: {settings.scheme}, quantized layers take {result.weight_ratio:.1%} of their bfloat16 bytes")
    return 0


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar, from the first block on: nothing flashes up before the sentence about a wrong setting."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    bar = rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(stderr=True))
    task = bar.add_task("blocks", total=None)

    def progress(done: int, total: int, words: str) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, description=words)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def _lines() -> Iterator[Progress]:
    """A line at most every few seconds, for files and pipes."""
    started = time.monotonic()
    said, before = -math.inf, ""

    def progress(done: int, total: int, words: str) -> None:
        nonlocal said, before
        now = time.monotonic()
        what = words.rstrip("0123456789")  # a new phase is said at once
        if now - said >= _LINE_SECONDS or what != before:
            print(f"{words}: {done} of {total} done after {now - started:.0f} s", file=sys.stderr, flush=True)
            said, before = now, what

    yield progress


def share(text: str) -> float:
    """``1%`` or ``0.01`` as 0.01."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UserError(f"--max-loss must be a percentage such as 1%, or a part such as 0.01, not {text!r}.") from None


def _reasons(plan: Plan, everything: bool) -> None:
    """Why layers got their widths: those with the wider scheme, or all."""
    for row in plan.reasons:
        if everything or (row["block"], row["stage"]) in plan.wide:
            print(f"block {row['block']:3} {row['stage']:8} {row['why']}")
    print(f"mean width {plan.mean_bits:.2f} bits; predicted rise of the perplexity {math.expm1(plan.predicted):.2%}")
    if plan.unmet:
        print(f"aloft: {plan.unmet}.", file=sys.stderr)


def _table(result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    by_kind: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in result.layers:
        by_kind[row["layer"].rpartition(".")[2], row["scheme"]].append(row["error"])
    table = Table("layers", "scheme", "count", "mean error", "largest error")
    for (kind, scheme), errors in by_kind.items():
        table.add_row(kind, scheme, str(len(errors)), f"{sum(errors) / len(errors):.2e}", f"{max(errors):.2e}")
    Console().print(table)
