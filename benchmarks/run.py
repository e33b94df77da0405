"""Measure aloft on this machine and write benchmarks/results/latest.json (`make bench`).

Rows: {figure, model, engine, precision, batch, prompt, value, unit} and the number and range of the runs; value is the
median. Machine, versions, commit and command lie beside them: a figure without these says nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def measure(*arguments: str, repeats: int) -> list[dict[str, Any]]:
    """Rows of one measurement, made in a process of its own."""
    command = [sys.executable, str(HERE / "measure.py"), *arguments, "--repeats", str(repeats)]
    print("measuring:", *arguments, file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with status {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text()
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    return {
        "cpu": facts.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "isa": sorted(flags & {"avx2", "fma", "f16c", "avx512bw", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd"}),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Versions of what was measured."""
    found = {"python": platform.python_version()}
    for name in ("vllm-aloft", "torch", "torch_npu", "vllm", "transformers"):
        found[name] = metadata.version(name)
    return found


def commit() -> str:
    """The commit measured, with a mark where files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Measure everything asked for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition instead of five")
    parser.add_argument("--engines", default="aloft", help="comma-separated names (see benchmarks/engines)")
    parser.add_argument("--precision", default="bf16", help="comma-separated: bf16, fp16, fp32")
    parser.add_argument("--model", type=Path, help="model folder; the demo model where left out")
    parser.add_argument("--out", type=Path, default=RESULTS / "latest.json")
    args = parser.parse_args()
    repeats = 1 if args.quick else 5
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "rows": [],
    }
    model = args.model
    if model is None:
        from aloft.cli.demo_model import ensure

        model = ensure()
    rows = report["rows"]
    rows += measure("imports", repeats=min(repeats, 3))
    rows += measure("route", repeats=repeats)
    for engine in args.engines.split(","):
        for precision in args.precision.split(","):
            rows += measure("engine", engine, str(model), precision, repeats=repeats)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for entry in rows:
        where = f"{entry['engine']} {entry['precision']} batch {entry['batch']} prompt {entry['prompt']}"
        print(f"{entry['figure']:<32} {where:<32} {entry['value']:>10.3f} {entry['unit']}")
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
