"""Worker processes seen from the program that measures: start, ask, stop; one of them runs at a time.

A worker that is not being asked is stopped by a signal (SIGSTOP, its whole process group), so that no thread pool of an
idle engine spins on the cores of the one being measured, and every engine keeps the waiting policy it has by default.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engines import Kind

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("ALOFT_PEERS", HERE.parent / ".venv-peers"))
#: of every engine and of the machine's limits: the processors this process may use. `run.py --threads` sets another.
THREADS = len(os.sched_getaffinity(0))


class WorkerFailed(RuntimeError):
    """The engine could not do what was asked; the text says why."""


def python_of(kind: Kind) -> Path:
    """The interpreter of an engine's environment."""
    return PEERS / kind.environment / "bin" / "python" if kind.environment else Path(sys.executable)


def missing(kind: Kind) -> str:
    """Why an engine cannot be measured here; empty where it can."""
    if not kind.environment or (python_of(kind).exists() and (PEERS / kind.environment / "installed").exists()):
        return ""
    reason = PEERS / kind.environment / "failed"
    return reason.read_text().strip() if reason.exists() else "not installed (make peers)"


def environment(kind: Kind, threads: int, kv_gib: int) -> dict[str, str]:
    """The environment an engine runs in: `threads` threads for everything, nothing fetched, nobody told.

    kv_gib: cache to reserve, for the engine that is told so by its environment.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"))}
    kept |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    kept["OMP_NUM_THREADS"] = str(threads)
    if kind.engine == "aloft":
        kept["ALOFT_THREADS"] = str(threads)
        return kept
    kept["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if kind.engine == "vllm_cpu":
        # What its platform preloads into the processes it starts; here the engine is in the worker itself.
        gomp = sorted((PEERS / "vllm_cpu").glob("lib/python3*/site-packages/torch/lib/libgomp*.so*"))
        kept["LD_PRELOAD"] = str(gomp[0]) if gomp else ""
        kept["VLLM_CPU_KVCACHE_SPACE"] = str(kv_gib)
        kept["PATH"] = f"{python_of(kind).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept


class Worker:
    """One engine's process. Use as a context: it is ended on the way out."""

    def __init__(self, kind: Kind, log: Path, kv_gib: int = 1) -> None:
        self.kind = kind
        self.log = log
        self._log = log.open("ab")
        command = [str(python_of(kind)), str(HERE / "worker.py"), kind.engine]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(kind, THREADS, kv_gib),
            process_group=0,
        )
        self._awake = True

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, call: str, timeout: float = 600, **arguments: Any) -> dict[str, Any]:
        """Wake the worker, ask, wait for the answer, put it to sleep.

        Raises:
            WorkerFailed: it answered with an error, died, or took longer than `timeout` seconds.
        """
        self._signal(signal.SIGCONT)
        process = self._process
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps({"call": call, **arguments}).encode() + b"\n")
            process.stdin.flush()
            line = self._line(time.monotonic() + timeout)
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            status = process.wait()
            how = f" ({signal.Signals(-status).name})" if status < 0 else ""
            raise WorkerFailed(
                f"the process of {self.kind.engine} ended with status {status}{how}: {self.last_words()}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        self._signal(signal.SIGSTOP)
        return answer

    def _line(self, end: float) -> bytes:
        stream = self._process.stdout
        assert stream
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise WorkerFailed(f"{self.kind.engine} gave no answer in time")
            piece = os.read(stream.fileno(), 1 << 20)
            if not piece:
                return b""
            data += piece
        return data

    @property
    def process_id(self) -> int:
        """Of the worker, which leads its process group."""
        return self._process.pid

    def last_words(self) -> str:
        """The last line of the log that is not empty."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip(" .\n")]
        return lines[-1][:300] if lines else "nothing in its log"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)  # the group outlives its leader while a child does

    def close(self) -> None:
        """End the process and its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream:
                with contextlib.suppress(BrokenPipeError):  # a command the dead process never read
                    stream.close()


def quantize(source: Path, target: Path, kind: str) -> None:
    """Make a quantized GGUF file with llama.cpp's quantizer, in its environment.

    Raises:
        WorkerFailed: llama.cpp is missing or fails.
    """
    llama = Kind("llama_cpp", kind, "llama_cpp", "gguf")
    if reason := missing(llama):
        raise WorkerFailed(f"its file is made by llama.cpp: {reason}")
    with Worker(llama, target.with_suffix(".log")) as worker:
        worker.ask("import_engine")
        worker.ask("extra", what="quantize", source=str(source), target=str(target), kind=kind)
