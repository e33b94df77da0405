"""One measurement in a process of its own: prints rows as one line of JSON. Started by run.py.

measure.py imports | route | engine NAME MODEL PRECISION --repeats N
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL_NAME = "SmolLM2-135M-Instruct"
VOCABULARY = 49_000
DECODE_BATCHES = (1, 8, 32)
DECODE_PROMPT, DECODE_TOKENS = 32, 64
PREFILL_PROMPTS = (512,)
Row = dict[str, Any]


def row(figure: str, values: list[float], unit: str, **more: Any) -> Row:
    """A row of the results: the median of the values, with their range."""
    base = {"figure": figure, "model": "", "engine": "", "precision": "", "batch": 0, "prompt": 0}
    spread = {"runs": len(values), "min": min(values), "max": max(values)}
    return {**base, **more, "value": statistics.median(values), "unit": unit, **spread}


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


def measure_engine(name: str, model: Path, precision: str, repeats: int) -> list[Row]:
    """Start, prefill, time to first token and decoding of one engine."""
    import engines

    common = {"model": MODEL_NAME, "engine": name, "precision": precision}
    if name == "aloft":
        from vllm import LLM  # noqa: F401  # importing is no part of the start
    started = time.perf_counter()
    longest = max(*PREFILL_PROMPTS, DECODE_PROMPT + DECODE_TOKENS) + 16
    engine = engines.start(name, model, precision, max(DECODE_BATCHES), longest)
    rows = [row("engine_start", [time.perf_counter() - started], "s", **common)]
    chance = random.Random(0)

    def prompts(batch: int, length: int) -> list[list[int]]:
        return [[chance.randrange(100, VOCABULARY) for _ in range(length)] for _ in range(batch)]

    samples: dict[tuple[str, int, int, str], list[float]] = {}

    def note(figure: str, batch: int, prompt: int, unit: str, value: float) -> None:
        samples.setdefault((figure, batch, prompt, unit), []).append(value)

    for repeat in range(repeats + 1):
        keep = repeat > 0  # the first round warms up
        for length in PREFILL_PROMPTS:
            timing = engine.generate(prompts(1, length), 1)
            if keep:
                note("prefill", 1, length, "tok/s", length / timing.first_s)
        for batch in DECODE_BATCHES:
            timing = engine.generate(prompts(batch, DECODE_PROMPT), DECODE_TOKENS)
            if keep:
                speed = timing.tokens_after_first / (timing.total_s - timing.first_s)
                note("decode", batch, DECODE_PROMPT, "tok/s", speed)
                if batch == 1:
                    note("time_to_first_token", 1, DECODE_PROMPT, "s", timing.first_s)
    for (figure, batch, prompt, unit), values in samples.items():
        rows.append(row(figure, values, unit, **common, batch=batch, prompt=prompt))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("imports", "route", "engine"))
    parser.add_argument("of", nargs="*")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.what == "imports":
        rows = measure_imports(args.repeats)
    elif args.what == "route":
        rows = measure_route(args.repeats)
    else:
        name, model, precision = args.of
        rows = measure_engine(name, Path(model), precision, args.repeats)
    print("\n" + json.dumps(rows), flush=True)
    os._exit(0)  # what an engine leaves behind at exit is none of the figures


if __name__ == "__main__":
    main()
