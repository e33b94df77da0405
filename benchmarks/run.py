"""Measure aloft and its peers side by side on this machine (`make bench`).

Engines that compute the same model at the same weight precision are alive together, each in a process and environment
of its own, and take turns at every figure; the machine's limits are measured between their turns. Written:
benchmarks/results/<date>-<processor>-<label or time>.json and the same as .md (see results.py and targets.py for the
fields), and latest.json: what it has of this machine, merged with the new report (merge.py).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import bounds
import files
import host
import merge
import plan as plans
import servers
import table
import targets
import workers
from clock import Clock
from plan import LEFT_OUT
from results import Samples, ratios, row
from session import Sitting, say

HERE = Path(__file__).resolve().parent
NOT_CHOSEN = f"{LEFT_OUT} (--quick or --engines)"
NO_SESSION = f"{LEFT_OUT} (--quick, --models or --classes)"


def measure(what: str, repeats: int, most: float | None = None) -> list[dict[str, Any]]:
    """Rows of one measurement of aloft alone (measure.py), made in a process of its own.

    Raises:
        TimeoutError: it took more than `most` seconds.
    """
    command = [sys.executable, str(HERE / "measure.py"), what, "--repeats", str(repeats)]
    command += ["--threads", str(workers.THREADS)]
    say("measuring", what)
    # a group of its own: what it has started ends with it when we leave before it has
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            out, _ = process.communicate(timeout=most)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"{what} took more than {most:.0f} s") from error
            raise
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with status {process.returncode}")
    return json.loads(out.strip().splitlines()[-1])


def chosen(plan: plans.Plan, args: argparse.Namespace) -> plans.Plan:
    """The plan cut down to what was asked for.

    Raises:
        ValueError: a name is not of the plan, with those that are; or nothing is left.
    """
    sessions = plan.sessions
    if args.models:
        names = _names("--models", args.models, [session.model for session in sessions])
        sessions = [session for session in sessions if session.model in names]
    if args.classes:
        names = _names("--classes", args.classes, [session.precision for session in plan.sessions])
        sessions = [session for session in sessions if session.precision in names]
    if args.engines:
        known = [kind for session in plan.sessions for kind in session.kinds]
        names = _names("--engines", args.engines, [n for k in known for n in (k.engine, f"{k.engine}-{k.precision}")])
        cut = [tuple(k for k in s.kinds if k.engine in names or f"{k.engine}-{k.precision}" in names) for s in sessions]
        sessions = [replace(session, kinds=kinds) for session, kinds in zip(sessions, cut, strict=True) if kinds]
    if args.figures:
        names = _names("--figures", args.figures, [name for session in plan.sessions for name in _figures(session)])
        sessions = [cut for cut in (_with_figures(session, names) for session in sessions) if cut.figures]
    if args.rounds:
        sessions = [replace(session, rounds=args.rounds, starts=1) for session in sessions]
    if not sessions:
        raise ValueError("nothing is left to measure: no session of the plan has all of --models, --classes, ...")
    return replace(plan, sessions=sessions)


def _names(option: str, text: str, valid: list[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in valid]
    if unknown:
        raise ValueError(
            f"{option} {', '.join(unknown)}: not of this plan, which has {', '.join(dict.fromkeys(valid))}"
        )
    return names


def _figures(session: plans.Session) -> list[str]:
    lengths = [f"prefill-{length}" for length in session.prefill]
    return ["prefill", *lengths, "decode", *(f"decode-{case.batch}-{case.prompt}" for case in session.decode)]


def _with_figures(session: plans.Session, names: list[str]) -> plans.Session:
    cut = replace(
        session,
        prefill=tuple(n for n in session.prefill if f"prefill-{n}" in names or "prefill" in names),
        decode=tuple(c for c in session.decode if f"decode-{c.batch}-{c.prompt}" in names or "decode" in names),
    )
    return replace(cut, dropped=tuple(name for name in session.figures if name not in cut.figures))


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main figures in at most six minutes")
    parser.add_argument("--models", help="comma-separated; all of the plan where left out")
    parser.add_argument("--classes", help="precision classes: 16-bit, fp32, 8-bit, 4-bit")
    parser.add_argument("--engines", help="engine or engine-precision, such as aloft,llama_cpp-f16")
    parser.add_argument("--figures", help="such as prefill,decode-1-32")
    parser.add_argument("--rounds", type=int, help="samples of each figure; engines are started once")
    parser.add_argument("--only-engines", action="store_true", help="leave out imports, route and servers")
    parser.add_argument("--threads", type=int, default=workers.THREADS, help="of each engine: all processors here")
    parser.add_argument(
        "--guard",
        help="a command that runs while engines are measured and is begun anew about each minute; it has "
        "to last for 90 s, and measuring begins when it prints a line",
    )
    parser.add_argument("--label", default="", help="the end of the file's name, instead of the time")
    parser.add_argument("--out", type=Path, help="one JSON file to write instead of those in benchmarks/results")
    return parser


class Run:
    """What one run has found so far."""

    def __init__(self, plan: plans.Plan, args: argparse.Namespace, clock: Clock, roof: bounds.Roofline) -> None:
        self.plan, self.args, self.clock, self.roof = plan, args, clock, roof
        self.samples = Samples()
        self.shapes: dict[str, bounds.Shape] = {}
        self.missing: dict[str, dict[str, str]] = {}
        self.agreement: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}
        self.layer_bytes: dict[tuple[str, str], float] = {}
        self.online: list[dict[str, Any]] | None = None
        self.rows: list[dict[str, Any]] = []  # of the sessions that are over
        self.alone: list[dict[str, Any]] = []

    def measure(self) -> None:
        """Everything asked for."""
        self.missing["sessions"] = {
            session.title: NO_SESSION
            for session in plans.full().sessions
            if session.title not in [mine.title for mine in self.plan.sessions]
        }
        logs = Path(tempfile.mkdtemp(prefix="aloft-bench-"))
        say("logs of the engines:", logs)
        for session in self.plan.sessions:
            self._session(session, logs)
        if self.args.only_engines:
            reason = f"{LEFT_OUT} (--only-engines)"
            self.missing["other figures"] = dict.fromkeys(("imports", "route", "steps", "servers"), reason)
            return
        plan = self.plan
        parts = {"imports": plan.import_repeats, "route": plan.route_repeats, "steps": plan.step_repeats}
        for what, repeats in parts.items():
            self._alone(what, repeats)
        names = [name for name in plan.servers if not self.args.engines or name in self.args.engines]
        served = servers.measure(
            plan.first_token_repeats, plan.rates, plan.online_requests, names, logs, clock=self.clock
        )
        self.alone += served[0]
        self.online, self.missing["servers"] = served[1:]
        self.missing["servers"] |= {kind.name: NOT_CHOSEN for kind in servers.KINDS if kind.engine not in names}

    def _session(self, session: plans.Session, logs: Path) -> None:
        sitting = Sitting(session, self.samples, self.roof, logs, self.args.guard, self.clock)
        sitting.run()
        self.shapes[session.model] = sitting.shape()
        left = dict.fromkeys(session.left_out, NOT_CHOSEN)
        self.missing[session.title] = left | session.not_measured | sitting.missing
        self.agreement[session.title], self.memory[session.title] = sitting.agreement, sitting.memory
        self.layer_bytes |= sitting.layer_bytes
        self.rows = self.samples.rows()

    def _alone(self, what: str, repeats: int) -> None:
        try:
            if not self.clock.allows(what):
                raise TimeoutError(self.clock.reason)
            self.alone += measure(what, repeats, self.clock.left())
        except TimeoutError as error:
            self.missing.setdefault("other figures", {})[what] = str(error)

    def report(self) -> dict[str, Any]:
        """The part of the report that was measured."""
        rows = self.rows + self.alone
        found: dict[str, Any] = {} if self.online is None else {"online": self.online}
        return found | {
            "roofline": {name: row(name, values, unit) for (name, unit), values in self.roof.samples.items()},
            "missing": {title: entries for title, entries in self.missing.items() if entries},
            "agreement": self.agreement,
            "memory_mib": self.memory,
            "layer_bytes": {f"{model} {weights}": each for (model, weights), each in self.layer_bytes.items()},
            "rows": rows,
            "ratios": ratios(rows, self.shapes, self.roof, self.layer_bytes),
        }


def main() -> None:
    """Measure everything asked for and write the results."""
    parser = options()
    args = parser.parse_args()
    if args.threads < 1:
        parser.error(f"--threads {args.threads}: at least 1")
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: at least 1")
    workers.THREADS = args.threads
    # engines and servers lie stopped in process groups of their own: whoever ends this program ends them through it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        plan = chosen(plans.quick() if args.quick else plans.full(), args)
    except ValueError as error:
        parser.error(str(error))
    started, clock = time.monotonic(), Clock(plan.limit)
    bounds.build()
    now = datetime.datetime.now(datetime.UTC)
    report: dict[str, Any] = {
        "date": now.isoformat(timespec="seconds"),
        # paths of this machine say nothing to the reader
        "command": shlex.join(["python", "benchmarks/run.py", *(Path(word).name for word in sys.argv[1:])]),
        "commit": host.commit(),
        "machine": host.machine(),
        "versions": host.versions(),
        "threads": workers.THREADS,
    }
    run = Run(plan, args, clock, bounds.Roofline(workers.THREADS))
    try:
        run.measure()
    except (KeyboardInterrupt, SystemExit) as error:
        if not run.rows:
            raise
        report["incomplete"] = f"ended by {type(error).__name__} {error}".rstrip()
    report |= run.report()
    report["seconds"] = round(time.monotonic() - started)
    if "incomplete" in report:  # of use to whoever waited for it, but no report
        write(report, (args.out or files.RESULTS / "run.json").with_suffix(".incomplete.json"), now)
        raise SystemExit(f"{report['incomplete']}; only what was measured before has been written")
    write(report, args.out, now, args.label)


def write(report: dict[str, Any], out: Path | None, now: datetime.datetime, label: str = "") -> None:
    """Write the files and print the table. Without `out`: a file that is not there yet, and latest.json."""
    file = out or files.unused(now, host.slug(report["machine"]["cpu"]), host.slug(label))
    report["file"] = file.name
    report["targets"] = targets.entries([report])
    page = table.markdown(report)
    files.save(report, file, page)
    print(page)
    say(f"written: {file} ({report['seconds']} s)")
    if out is None:
        renew_latest(file)


def renew_latest(file: Path) -> None:
    """latest.json with the new report; without what it has had, where that is of another machine or no report."""
    latest = files.latest()
    try:
        made = merge.merge([latest, file] if latest.exists() else [file])
    except ValueError as error:
        say("latest.json is begun anew:", error)
        made = merge.merge([file])
    files.save(made, latest, table.markdown(made))


if __name__ == "__main__":
    main()
