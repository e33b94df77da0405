"""`aloft serve`: vLLM's own server as a child process, watched, asked one question, and ended in time."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import psutil

from aloft.cli import flags, reason
from aloft.cli.client import Answer, Client
from aloft.cli.copied import Copied
from aloft.cli.errors import UserError
from aloft.runtime.choice import device_line

QUESTION = "What is the capital of France?"
# From an interrupt until the whole process group is killed; a user waits at most 5 s for Ctrl-C.
GRACE_S = 3.0
TRACKER_S = 1.0
_PR_SET_PDEATHSIG = 1
_ENGINE = "VLLM::Engine"


def serve(model: str | None, host: str, port: int, arguments: list[str], ask: bool) -> int:
    """Run `vllm serve` until it ends or is interrupted.

    Args:
        model: folder or name; None is the demo model.
        arguments: handed on to `vllm serve` as they are.
        ask: ask one question once the server is healthy, and print answer, speed and device.

    Returns:
        Exit status: 0 after an interrupt, else the server's (1 where it died by a signal).

    Raises:
        UserError: the port cannot be had, there is no such model folder, a flag or ALOFT_RUNTIME is wrong, or the demo
            model cannot be made.
    """
    check_port(host, port)
    if model is not None:
        folder = served_folder(model, not any(word.split("=")[0] == "--tokenizer" for word in arguments))
        if folder != model:
            arguments = _named(model, arguments)
        model = folder
        check_model(model)
    flags.check(arguments)
    try:
        device = device_line()
    except ValueError as error:
        raise UserError(str(error)) from error
    if model is None:
        from aloft.cli.demo_model import NAME, ensure

        model = str(ensure())
        arguments = _named(NAME, arguments)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model),
        *("--host", host, "--port", str(port), *arguments),
    ]
    server = subprocess.Popen(
        command,
        env=_environment(model),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    assert server.stdout is not None and server.stderr is not None
    copied = Copied(server.stdout, server.stderr)
    interrupted = _Interrupt()
    healthy = False
    try:
        with interrupted:
            healthy = _wait_healthy(server, Client(host, port), interrupted)
            if healthy:
                print(f"\n  started   {_start_split(server.pid)}", flush=True)
                if ask:
                    _ask(Client(host, port), device)
            while server.poll() is None and not interrupted:
                time.sleep(0.1)
    finally:
        end(server)
    if interrupted:
        return 0
    status = server.returncode
    if healthy and status == 0:  # vLLM ends in good order when its engine has died
        print("aloft: the server ended by itself; its messages are above.", file=sys.stderr)
        return 1
    if status:
        said = reason.of_log(copied.text())
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        print(f"aloft: the server ended with {how}; its messages are above.", file=sys.stderr)
        if said:
            print(f"aloft: {said}", file=sys.stderr)
    return status if status >= 0 else 1


def served_folder(model: str, own_tokenizer: bool = True) -> str:
    """The folder vLLM is given for a GGUF file; any other model as it is.

    own_tokenizer: no other tokenizer was named.
    """
    from aloft.quantization.gguf.folder import model_folder

    try:
        return model_folder(model, own_tokenizer)
    except ValueError as error:
        raise UserError(str(error)) from error


def _named(name: str, arguments: list[str]) -> list[str]:
    """The arguments, with this name for requests unless they give one."""
    if any(argument.split("=")[0] == "--served-model-name" for argument in arguments):
        return arguments
    return ["--served-model-name", name, *arguments]


def check_port(host: str, port: int) -> None:
    """Refuse a port that cannot be listened on, before anything slow starts."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"Port {port} on {host} is taken by another program; "
                f"choose another one: aloft serve --port {port % 65535 + 1} (make serve PORT={port % 65535 + 1})."
            ) from error
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error


def check_model(model: str) -> None:
    """Refuse a path that is no model's folder; a name is looked up by vLLM."""
    if model.startswith(("/", ".", "~")) and not os.path.exists(model):
        raise UserError(f"There is no {model}; give the folder of a model, or its name on the Hugging Face hub.")
    if os.path.isdir(model) and not any(os.path.exists(os.path.join(model, n)) for n in ("config.json", "params.json")):
        raise UserError(f"{model} is not the folder of a model: it has no config.json.")


def require_folder(model: Path) -> None:
    """Refuse what is not the folder of a model, where a name on the hub does not do."""
    if not model.is_dir():
        raise UserError(f"There is no folder {model}; give the folder of a model.")
    check_model(str(model))


def end(server: subprocess.Popen[bytes]) -> None:
    """End the server and everything in its session: interrupt, wait `GRACE_S`, kill."""
    started = []
    if server.poll() is None:
        started = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_S)
    # Python's resource trackers end when what they track for has ended, and remove its shared memory then.
    trackers = [process for process in started if _is_tracker(process)]
    if trackers:
        server.kill()
        for process in started:
            if process not in trackers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        psutil.wait_procs(trackers, TRACKER_S)
    # Its engine processes share its process group, and may outlive it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


class _Interrupt:
    """True once SIGINT or SIGTERM came; handlers are put back at the end of the `with` block."""

    def __init__(self) -> None:
        self._came = False

    def __bool__(self) -> bool:
        return self._came

    def __enter__(self) -> _Interrupt:
        self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True


def _environment(model: str) -> dict[str, str]:
    environment = dict(os.environ)
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Its output passes through this process: what it says comes at once, and in colour where that is seen.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if sys.stdout.isatty():
        environment.setdefault("VLLM_LOGGING_COLOR", "1")
    if os.path.isdir(model):
        environment.setdefault("HF_HUB_OFFLINE", "1")
    return environment


def _die_with_parent() -> None:
    """In the child, before it becomes the server: be terminated when the command is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_healthy(server: subprocess.Popen[bytes], client: Client, interrupted: _Interrupt) -> bool:
    while server.poll() is None and not interrupted:
        if client.healthy():
            return True
        time.sleep(0.25)
    return False


def _start_split(pid: int) -> str:
    """How long the server took to be healthy, a moment ago, and which part of it its engine process did not exist."""
    now = time.time()
    server = psutil.Process(pid)
    total = now - server.create_time()
    engines = [child.create_time() for child in server.children(recursive=True) if child.name().startswith(_ENGINE)]
    if not engines:
        return f"in {total:.1f} s"
    imports = min(engines) - server.create_time()
    return f"in {total:.1f} s: imports and configuration {imports:.1f}, engine and server {total - imports:.1f}"


def _ask(client: Client, device: str) -> None:
    answer = Answer()
    name = client.model()
    for _ in client.stream(name, [{"role": "user", "content": QUESTION}], answer, temperature=0, max_tokens=32):
        pass
    print(
        f"  model     {name}\n"
        f"  question  {QUESTION}\n"
        f"  answer    {answer.text.strip()}\n"
        f"  speed     {answer.num_tokens} tokens, {answer.tokens_per_second():.1f} tok/s, "
        f"first after {answer.first_s:.2f} s\n"
        f"  device    {device}\n\n"
        f"Serving at {client.base}/v1 (Ctrl-C ends).",
        flush=True,
    )
