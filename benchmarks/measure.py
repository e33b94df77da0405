"""One measurement in a process of its own: prints rows as one line of JSON. Started by run.py.

measure.py imports | route | steps [--repeats N] [--threads N]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import workers
from results import Row, row

STEP_BATCHES = (1, 8, 32)
STEP_PROMPT = 32


def measure_imports(repeats: int) -> list[Row]:
    """Seconds the imports take, each time in a fresh process."""
    program = (
        "import time; t = [time.perf_counter()]\n"
        "import torch; t.append(time.perf_counter())\n"
        "{second}; t.append(time.perf_counter())\n"
        "print(t[1] - t[0], t[2] - t[1])"
    )
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for autoload, second, names in (
            ("0", "pass", ("import_torch_alone", "")),
            ("1", "import vllm; from vllm import LLM", ("import_torch_with_npu", "import_vllm")),
        ):
            environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload, VLLM_LOGGING_LEVEL="ERROR")
            command = [sys.executable, "-c", program.format(second=second)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            for name, value in zip(names, done.stdout.split(), strict=True):
                if name:
                    times.setdefault(name, []).append(float(value))
    return [row(name, values, "s") for name, values in times.items()]


def measure_route(repeats: int) -> list[Row]:
    """Microseconds a call on an npu tensor costs over the same call on a CPU tensor, for operators of 16 elements.

    hypot has no native operator here and goes the generic host route; add is shown beside it.
    """
    import torch

    def forms(device: str) -> dict[str, Callable[[], Any]]:
        a, b, c = (torch.rand(16, device=device) + 1 for _ in range(3))
        return {
            "hypot_out": lambda: torch.hypot(a, b, out=c),
            "hypot_inplace": lambda: c.hypot_(b),
            "hypot_functional": lambda: torch.hypot(a, b),
            "add_out": lambda: torch.add(a, b, out=c),
            "add_functional": lambda: torch.add(a, b),
        }

    def microseconds(call: Callable[[], Any], count: int = 3000) -> float:
        for _ in range(200):
            call()
        started = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - started) / count * 1e6

    torch.set_num_threads(1)
    cpu, npu = forms("cpu"), forms("npu")
    over: dict[str, list[float]] = {name: [] for name in cpu}
    gc.disable()
    for _ in range(3 * repeats):  # taken turn by turn, so that a slow moment of the machine hits both
        for name in cpu:
            base = microseconds(cpu[name])
            over[name].append(microseconds(npu[name]) - base)
    return [row(f"route_overhead_{name}", values, "us", engine="aloft") for name, values in over.items()]


def measure_steps(repeats: int) -> list[Row]:
    """Milliseconds of a decode step in the operators and outside of them (`aloft profile`).

    Turning tokens into text counts apart: a server does it in another process, beside the next step.
    """
    values: dict[tuple[str, int], list[float]] = {}
    environment = dict(os.environ, OMP_NUM_THREADS=str(workers.THREADS))
    for _ in range(repeats):
        for batch in STEP_BATCHES:
            command = [sys.executable, "-m", "aloft.cli.main", "profile", "--json", "--steps", "32"]
            command += ["--batch", str(batch), "--prefill", str(STEP_PROMPT), "--prompt", str(STEP_PROMPT)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            step = json.loads(done.stdout.strip().splitlines()[-1])["steps"][-1]
            parts = {name: 1e3 * seconds for name, seconds in step["parts"].items()}
            in_operators, text = parts.pop("operators"), parts.pop("detokenizer")
            named = {"runner outside operators": "step_runner", "scheduler": "step_scheduler"}
            figures = {"step_operators": in_operators, "step_outside_operators": sum(parts.values())}
            figures["step_detokenization"] = text
            figures |= {named.get(name, "step_engine"): value for name, value in parts.items()}
            for figure, value in figures.items():
                values.setdefault((figure, batch), []).append(value)
    common = {"model": "SmolLM2-135M", "engine": "aloft", "precision": "16-bit", "weights": "bf16"}
    return [
        row(figure, found, "ms", **common, batch=batch, prompt=STEP_PROMPT) for (figure, batch), found in values.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=tuple(MEASUREMENTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=workers.THREADS)
    args = parser.parse_args()
    workers.THREADS = args.threads
    rows = MEASUREMENTS[args.what](args.repeats)
    print("\n" + json.dumps(rows), flush=True)
    os._exit(0)  # what an engine leaves behind at exit is none of the figures


MEASUREMENTS = {"imports": measure_imports, "route": measure_route, "steps": measure_steps}

if __name__ == "__main__":
    main()
