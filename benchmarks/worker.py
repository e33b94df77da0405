"""The process an engine is measured in: worker.py ENGINE. Run with the engine's own Python; standard library only.

One JSON object a line comes in on standard input, one goes out where standard output was; what the engine prints goes
to standard error. {"call": "load", ...} | "begin" | "decode" | "end" | "memory" | "quantize"; answers carry "seconds".
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()


def peak_memory() -> dict[str, float]:
    """MiB: the most this process and its children ever held, and what they hold now."""
    peak = now = 0.0
    mine = os.getpid()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:  # ended meanwhile
            continue
        if int(facts["Pid"]) == mine or int(facts["PPid"]) == mine:
            peak += int(facts.get("VmHWM", "0 kB").split()[0]) / 1024
            now += int(facts.get("VmRSS", "0 kB").split()[0]) / 1024
    return {"peak_mib": peak, "now_mib": now}


def memory_parts() -> dict[str, float]:
    """MiB this process holds now, by what it is: its own pages (huge ones apart), mapped files by their kind."""
    parts: dict[str, float] = {}
    kind, size = "", 0.0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if " " in key or "-" in key:  # the head of a mapping
            words = line.split(maxsplit=5)
            name = words[5] if len(words) > 5 else ""
            kind = _kind(name)
        elif key == "Rss":
            size = int(rest.split()[0]) / 1024
            parts[kind] = parts.get(kind, 0.0) + size
        elif key == "AnonHugePages":
            huge = int(rest.split()[0]) / 1024
            parts["of these in huge pages"] = parts.get("of these in huge pages", 0.0) + huge
    return {name: round(value, 1) for name, value in parts.items() if value >= 0.05}


def _kind(name: str) -> str:
    if "memfd:" in name:
        return "device memory in a file"
    if ".so" in name:
        return "libraries"
    if name.endswith((".gguf", ".safetensors", ".bin")):
        return "model files"
    if name.startswith("/"):
        return "other files"
    return name if name in ("[heap]", "[stack]") else "anonymous"


class Worker:
    """Answers calls; each method's answer is a dictionary."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._engine: Any = None
        self._module: Any = None

    def import_engine(self) -> dict[str, Any]:
        """Import what the engine needs."""
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        self._module = importlib.import_module(f"engines.{self._name}")
        return {"seconds": time.perf_counter() - STARTED}

    def load(self, **arguments: Any) -> dict[str, Any]:
        """Load the model."""
        started = time.perf_counter()
        self._engine = self._module.load(**arguments)
        return {"seconds": time.perf_counter() - started}

    def begin(self, prompts: list[list[int]]) -> dict[str, Any]:
        """Take prompts up to everyone's first token."""
        gc.collect()
        started = time.perf_counter()
        tokens = self._engine.begin(prompts)
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    def decode(self, steps: int) -> dict[str, Any]:
        """Make tokens."""
        started = time.perf_counter()
        tokens = self._engine.decode(steps)
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    def end(self) -> dict[str, Any]:
        """Forget the batch."""
        self._engine.end()
        return {}

    def memory(self) -> dict[str, Any]:
        """Memory so far."""
        return {**peak_memory(), "parts": memory_parts()}

    def extra(self, what: str, **arguments: Any) -> dict[str, Any]:
        """A function of the engine's module that only it has."""
        return {"value": getattr(self._module, what)(**arguments)}


def main() -> None:
    """Answer until standard input ends."""
    with_parent = 1  # PR_SET_PDEATHSIG: a stopped worker would outlive the one who can wake it
    ctypes.CDLL(None).prctl(with_parent, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("call"))(**request)
        except BaseException as error:  # whatever it is, the one who asked has to know
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
    os._exit(0)  # what an engine leaves behind at exit is none of the figures


if __name__ == "__main__":
    main()
