"""Measure aloft and its peers side by side on this machine (`make bench`).

Engines that compute the same model at the same weight precision are alive together, each in a process and environment
of its own, and take turns at every figure; the machine's limits are measured between their turns. Written:
benchmarks/results/<date>-<processor>.json, the same as .md, and latest.json (see results.py for the fields).
"""

from __future__ import annotations

import argparse
import datetime
import json
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
import host
import plan as plans
import servers
import table
import workers
from results import Samples, ratios, row
from session import Sitting, say

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
LEFT_OUT = "left out of this run (--quick or --engines)"


def measure(*arguments: str, repeats: int) -> list[dict[str, Any]]:
    """Rows of one measurement of aloft alone (measure.py), made in a process of its own."""
    command = [sys.executable, str(HERE / "measure.py"), *arguments, "--repeats", str(repeats)]
    say("measuring", *arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with status {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def chosen(plan: plans.Plan, args: argparse.Namespace) -> plans.Plan:
    """The plan cut down to what was asked for."""
    sessions = plan.sessions
    if args.models:
        sessions = [session for session in sessions if session.model in args.models.split(",")]
    if args.classes:
        sessions = [session for session in sessions if session.precision in args.classes.split(",")]
    if args.engines:
        names = args.engines.split(",")
        cut = [tuple(k for k in s.kinds if k.engine in names or f"{k.engine}-{k.precision}" in names) for s in sessions]
        sessions = [replace(session, kinds=kinds) for session, kinds in zip(sessions, cut, strict=True) if kinds]
    if args.figures:
        names = args.figures.split(",")
        sessions = [
            replace(
                s,
                prefill=tuple(n for n in s.prefill if f"prefill-{n}" in names or "prefill" in names),
                decode=tuple(c for c in s.decode if f"decode-{c.batch}-{c.prompt}" in names or "decode" in names),
            )
            for s in sessions
        ]
    if args.rounds:
        sessions = [replace(session, rounds=args.rounds, starts=1) for session in sessions]
    return replace(plan, sessions=sessions)


def main() -> None:
    """Measure everything asked for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main figures in at most six minutes")
    parser.add_argument("--models", help="comma-separated; all of the plan where left out")
    parser.add_argument("--classes", help="precision classes: 16-bit, fp32, 8-bit, 4-bit")
    parser.add_argument("--engines", help="engine or engine-precision, such as aloft,llama_cpp-f16")
    parser.add_argument("--figures", help="such as prefill,decode-1-32")
    parser.add_argument("--rounds", type=int, help="samples of each figure; engines are started once")
    parser.add_argument("--only-engines", action="store_true", help="leave out imports, route and servers")
    parser.add_argument(
        "--guard",
        help="a command that runs while engines are measured and is begun anew about each minute; it has "
        "to last for 90 s, and measuring begins when it prints a line",
    )
    parser.add_argument("--out", type=Path, help="one JSON file to write instead of those in benchmarks/results")
    args = parser.parse_args()
    # engines and servers lie stopped in process groups of their own: whoever ends this program ends them through it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    plan = chosen(plans.quick() if args.quick else plans.full(), args)
    started = time.monotonic()
    bounds.build()
    roof = bounds.Roofline(workers.THREADS)
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
    samples = Samples()
    shapes, missing, agreement, memory = {}, {}, {}, {}
    layer_bytes: dict[tuple[str, str], float] = {}
    logs = Path(tempfile.mkdtemp(prefix="aloft-bench-"))
    say("logs of the engines:", logs)
    rows: list[dict[str, Any]] = []  # of the sessions that are over
    alone: list[dict[str, Any]] = []
    try:
        for session in plan.sessions:
            sitting = Sitting(session, samples, roof, logs, args.guard)
            sitting.run()
            shapes[session.model] = sitting.shape()
            title = f"{session.model} {session.precision}"
            missing[title] = sitting.missing | dict.fromkeys(session.left_out, LEFT_OUT)
            agreement[title], memory[title] = sitting.agreement, sitting.memory
            layer_bytes |= sitting.layer_bytes
            rows = samples.rows()
        if not args.only_engines:
            alone += measure("imports", repeats=plan.import_repeats)
            alone += measure("route", repeats=plan.route_repeats)
            alone += measure("steps", repeats=plan.step_repeats)
            names = [name for name in plan.servers if not args.engines or name in args.engines]
            served = servers.measure(plan.first_token_repeats, plan.rates, plan.online_requests, names, logs)
            alone += served[0]
            report["online"], missing["servers"] = served[1:]
            missing["servers"] |= {kind.name: LEFT_OUT for kind in servers.KINDS if kind.engine not in names}
    except (KeyboardInterrupt, SystemExit) as error:
        if not rows:
            raise
        report["incomplete"] = f"ended by {type(error).__name__} {error}".rstrip()
    rows += alone
    limits = {name: row(name, values, unit) for (name, unit), values in roof.samples.items()}
    report |= {
        "roofline": limits,
        "missing": {title: found for title, found in missing.items() if found},
        "agreement": agreement,
        "memory_mib": memory,
        "layer_bytes": {f"{model} {weights}": each for (model, weights), each in layer_bytes.items()},
        "rows": rows,
        "ratios": ratios(rows, shapes, roof, layer_bytes),
    }
    report["seconds"] = round(time.monotonic() - started)
    if "incomplete" in report:  # of use to whoever waited for it, but no report
        write(report, (args.out or RESULTS / "run.json").with_suffix(".incomplete.json"), now)
        raise SystemExit(f"{report['incomplete']}; only what was measured before has been written")
    write(report, args.out, now)


def write(report: dict[str, Any], out: Path | None, now: datetime.datetime) -> None:
    """Write the files and print the table."""
    text = json.dumps(report, indent=1) + "\n"
    if out is None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        out = RESULTS / f"{now:%Y-%m-%d}-{host.slug(report['machine']['cpu'])}.json"
        (RESULTS / "latest.json").write_text(text)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    page = table.markdown(report)
    out.with_suffix(".md").write_text(page)
    print(page)
    say(f"written: {out} ({report['seconds']} s)")


if __name__ == "__main__":
    main()
