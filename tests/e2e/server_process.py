"""A real server in processes of its own, for the tests of serving."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

START_S = 300
# The chat template of the tests' model: roles and texts, one a line.
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


class Server:
    """`aloft serve` (wrapped) or plain `vllm serve` on a free port; logs are shown where a test fails."""

    def __init__(self, model: Path, *arguments: str, wrapped: bool = True, name: str = "tiny") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        program = ["aloft.cli.main", "serve"] if wrapped else ["vllm.entrypoints.cli.main", "serve"]
        environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        self.log = tempfile.NamedTemporaryFile("w+", prefix="aloft-server-", suffix=".log")  # noqa: SIM115
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        where += ["--served-model-name", name] if name else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program, str(model), *where, *arguments],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120, trust_env=False)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended while starting:\n{self.output()}"
            try:
                if self.http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.3)
        raise AssertionError(f"not healthy after {START_S} s:\n{self.output()}")

    def output(self) -> str:
        """What the server has printed so far (the last part)."""
        return self.everything()[-8000:]

    def everything(self) -> str:
        """All the server has printed so far."""
        return Path(self.log.name).read_text()

    def tree(self) -> list[psutil.Process]:
        """The server's processes, the first one included."""
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def find(self, words: str) -> psutil.Process:
        """The one process of the tree whose title or command line holds the words."""
        (found,) = [process for process in self.tree() if words in " ".join(process.cmdline())]
        return found

    def metric(self, name: str) -> float:
        """Sum of a metric's values."""
        text = self.http.get("/metrics").text
        values = re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? ([-+.\deE]+)$", text, re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(float(value) for value in values)

    def complete(self, prompt: str = "Hello", **parameters: object) -> httpx.Response:
        """POST /v1/completions, greedy and short unless said otherwise."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, **parameters}
        return self.http.post("/v1/completions", json=body)

    def stop(self) -> None:
        """Kill whatever is left."""
        for process in _alive(self.process.pid):
            process.kill()
        self.process.wait()
        self.http.close()
        self.log.close()


def _alive(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session or process.pid == session:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """Files in /dev/shm the processes have open or mapped."""
    found = set()
    for process in processes:
        names = [entry.path for entry in process.memory_maps(grouped=False)]
        names += [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir() if entry.is_symlink()]
        found |= {Path(name) for name in names if name.startswith("/dev/shm/") and "(deleted)" not in name}
    return found


def ended(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that are still alive after the time (a zombie is not)."""
    deadline = time.monotonic() + within_s
    left = processes
    while left and time.monotonic() < deadline:
        left = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.05)
    return left


def interrupt(server: Server) -> None:
    """What Ctrl-C does to the process a user started."""
    os.kill(server.process.pid, signal.SIGINT)
