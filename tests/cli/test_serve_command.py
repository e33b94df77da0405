"""`aloft serve` and `aloft chat` against a stand-in for vLLM's server (the real one: tests/e2e)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from commands import FAKE_VLLM, aloft, free_port

from aloft.cli import serve


@contextmanager
def serving(log: Path, *arguments: str, mode: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`aloft serve` with the stand-in; killed at the end."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(FAKE_VLLM), "FAKE_LOG": str(log), "FAKE_MODE": mode}
    environment.pop("HF_HUB_OFFLINE", None)
    (log.parent / "config.json").write_text("{}")
    process = subprocess.Popen(
        [sys.executable, "-m", "aloft.cli.main", "serve", str(log.parent), "--port", str(port), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, port
    finally:
        process.kill()
        if log.exists():  # before reading to the end: what lives on holds the pipe open
            for pid in json.loads(log.read_text())["pids"]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            return output
    raise AssertionError(f"{text!r} did not appear in {output!r}")


def gone(pid: int, within_s: float = 2.0) -> bool:
    """Whether the process ends in time (a zombie has ended)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("mode", ["", "completions", "stubborn"])
def test_asks_one_question_and_ends_on_interrupt(tmp_path: Path, mode: str) -> None:
    log = tmp_path / "log"
    with serving(log, "--max-model-len", "512", mode=mode) as (process, port):
        output = read_until(process, "Serving at")
        assert "What is the capital of France?" in output
        assert "The capital of France is Paris." in output
        assert "7 tokens" in output and "tok/s" in output
        assert "npu:0, virtual (910B3 profile, host CPU; not hardware)" in output
        assert f"http://127.0.0.1:{port}/v1" in output
        note = json.loads(log.read_text())
        assert note["model"] == str(tmp_path) and note["rest"] == ["--max-model-len", "512"]
        assert note["offline"] == {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        limit_s = 5 if mode != "stubborn" else serve.GRACE_S + serve.TRACKER_S + 5  # of which 5 are this machine's
        assert time.monotonic() - started < limit_s
        assert all(gone(pid) for pid in note["pids"]), "server and engine end with the command"
        assert (note["shared_memory"] is not None) == (mode == "stubborn")
        assert not Path("/dev/shm", note["shared_memory"] or "none").exists(), "a killed server's is removed"


def test_no_ask(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--no-ask") as (process, port):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and aloft_refuses_to_connect(port):
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=10)
        assert process.returncode == 0 and "capital" not in output


def aloft_refuses_to_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(("mode", "status", "reason"), [("crash", 3, "status 3"), ("killed", 1, "signal SIGKILL")])
def test_server_that_dies(tmp_path: Path, mode: str, status: int, reason: str) -> None:
    with serving(tmp_path / "log", mode=mode) as (process, _):
        _, errors = process.communicate(timeout=30)
        assert process.returncode == status and reason in errors and "Traceback" not in errors
        if mode == "crash":
            assert errors.startswith("(APIServer pid=1) ValueError") and errors.endswith("aloft: the dtype is wrong\n")
        assert all(gone(pid) for pid in json.loads((tmp_path / "log").read_text())["pids"])


def test_killed_command_takes_the_server_along(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as (process, _):
        read_until(process, "Serving at")
        process.kill()
        assert gone(json.loads((tmp_path / "log").read_text())["pids"][0])


def test_taken_port_is_one_sentence_at_once() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        started = time.monotonic()
        result = aloft("serve", "no-such-model", "--port", str(port))
    assert time.monotonic() - started < 5
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith(f"aloft: Port {port} on 127.0.0.1 is taken")
    assert "--port" in result.stderr and len(result.stderr.splitlines()) == 1


def test_path_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    for model, reason in ((str(tmp_path / "none"), "There is no "), (str(tmp_path), "has no config.json")):
        result = aloft("serve", model, "--port", str(free_port()))
        assert result.returncode == 1 and result.stdout == ""
        assert result.stderr.startswith("aloft: ") and reason in result.stderr and model in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_eval_of_what_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    result = aloft("eval", str(tmp_path), "--text", "x")
    assert result.stderr == f"aloft: {tmp_path} is not the folder of a model: it has no config.json.\n"


def test_host_that_is_not_here() -> None:
    result = aloft("serve", "m", "--host", "203.0.113.7", "--port", str(free_port()))
    assert result.returncode == 1 and result.stderr.startswith("aloft: Cannot listen on 203.0.113.7")


def test_wrong_runtime_is_refused_before_anything_starts() -> None:
    result = aloft("serve", "m", "--port", str(free_port()), ALOFT_RUNTIME="gpu")
    assert result.returncode == 1
    assert result.stderr == "aloft: ALOFT_RUNTIME='gpu' is not one of auto, cann, virtual\n"


def test_chat(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--no-ask") as (_, port):
        while aloft_refuses_to_connect(port):
            time.sleep(0.1)
        result = subprocess.run(
            [sys.executable, "-m", "aloft.cli.main", "chat", "--port", str(port)],
            input="Hello\n\nAgain\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("The capital of France is Paris.\n[7 tokens") == 2
    assert "(new conversation)" in result.stdout


def test_chat_without_a_server() -> None:
    result = aloft("chat", "--port", str(free_port()))
    assert result.returncode == 1 and "make serve" in result.stderr and "Traceback" not in result.stderr
