"""Processes that belong together end together, however one of them died.

An engine process waits for the end of the process that started it. A program that waits for an engine process which
was killed gets vLLM's EngineDeadError: its synchronous client would wait for the answer for ever. An API server ends
by itself then, but waits for its open connections and reports success: it is ended after `_SERVER_SECONDS`, and its
status says that it failed. vLLM kills its engines when a server is asked to end (Ctrl-C): no failure, and the server
leaves without taking Python apart.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

from aloft import compat

logger = logging.getLogger("vllm.aloft.parent")

_EXIT_CODE = 70
_POLL_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_ENGINE = "EngineCore"
_SERVER_SECONDS = 5.0
_WAITS_IN = ("vllm.v1.engine.core_client", "get_output")  # module, function
_SERVES_IN = ("uvloop", "run")
_LOOPS_IN = ("asyncio.runners", "run")
_SERVER = "vllm.entrypoints.launchers.api_server.entry"
_started: set[str] = set()
_engines: set[BaseProcess] = set()  # that this program has started and not learned the end of
_served = False  # this process has been a server
_asked: asyncio.Event | None = None  # set when this process, a server, is asked to end by a signal
_orphaned = threading.Event()  # this process is a server without its engine


def watch() -> bool:
    """Watches the parent, in a process vLLM started; returns whether it does (not in a user's own process)."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return False
    _close_ports()
    _start("aloft-parent-watch", _exit_after, parent)
    return True


def _close_ports() -> None:
    """Closes the ports a forked process got from its parent: they are to be free as soon as the parent has ended."""
    for name in os.listdir("/proc/self/fd"):
        try:
            inherited = socket.socket(fileno=int(name))
        except OSError:
            continue  # no socket, or closed by now
        if _is_port(inherited):
            inherited.close()
        else:
            inherited.detach()


def _is_port(inherited: socket.socket) -> bool:
    """Whether a socket is for listening on a TCP port; it may not listen yet."""
    if inherited.family not in (socket.AF_INET, socket.AF_INET6) or inherited.type != socket.SOCK_STREAM:
        return False
    try:
        inherited.getpeername()
    except OSError:
        return inherited.getsockname()[1] != 0
    return False


def watch_engines() -> bool:
    """Watches the engine processes this program starts; returns whether it does (not in an engine's process)."""
    if multiprocessing.parent_process() is not None:
        return False
    if "aloft-engine-watch" not in _started:
        atexit.register(_leave_at_once)
    _start("aloft-engine-watch", _release_after_engines)
    return True


def _start(name: str, target: object, *args: object) -> None:
    if name not in _started:
        _started.add(name)
        threading.Thread(target=target, args=args, name=name, daemon=True).start()  # type: ignore[arg-type]


def _exit_after(parent: BaseProcess) -> None:
    wait([parent.sentinel])
    logger.error("Process %s, which started this engine, has ended; exiting.", parent.pid)
    os._exit(_EXIT_CODE)  # device memory is a file descriptor of this process: nothing to clean up


def _release_after_engines() -> None:
    global _asked, _served
    failed: list[BaseProcess] = []
    deadline = float("inf")
    while True:
        _engines.update(child for child in multiprocessing.active_children() if child.name.startswith(_ENGINE))
        alive = [child.sentinel for child in _engines if child.exitcode is None]
        # An engine may start and die within a second, and a server's event must be known before its loop is gone.
        soon = failed or not _engines or (_served and _asked is None)
        pause = _PAUSE_SECONDS if soon else _POLL_SECONDS
        if failed or not alive:
            time.sleep(pause)
        else:
            wait(alive, timeout=pause)
        _served = _served or (_SERVER in sys.modules and _main_thread_in(_SERVES_IN) is not None)
        if _served and _asked is None:
            loop = _main_thread_in(_LOOPS_IN)
            _asked = compat.shutdown_event(loop.f_locals.get("self")) if loop is not None else None
        failed = _failed()
        client = _waiting_client() if failed else None
        if client is not None:
            logger.error("Engine process %s ended with exit code %d.", failed[0].pid, failed[0].exitcode)
            compat.report_dead_engine(client)
            _engines.difference_update(failed)
            failed = []
        elif failed and _lost():
            _orphaned.set()
            deadline = min(deadline, time.monotonic() + _SERVER_SECONDS)
            if time.monotonic() > deadline:
                logger.error("Engine process %s has ended and this server has not; ending it.", failed[0].pid)
                os._exit(_EXIT_CODE)


def _failed() -> list[BaseProcess]:
    return [child for child in list(_engines) if child.exitcode]


def _lost() -> bool:
    """Whether an engine that has failed is this server's loss: it serves, and nobody has asked it to end."""
    return _served and not (_asked is not None and _asked.is_set())


def _leave_at_once() -> None:
    """A server without its engine ends here, through with its own shutdown: taking Python apart needs 5 s or more.

    Looks for itself: on a busy machine the main thread may be here before the thread that watches has run.
    """
    if _orphaned.is_set() or (_lost() and _failed()):
        logging.shutdown()
        os._exit(_EXIT_CODE)


def status_of_ended_server() -> int | None:
    """The exit status of a server that was asked to end and has done so, all of Python's exit handlers included; None
    where this process is none, or something else went wrong. What is left, taking Python apart, needs 3 s or more."""
    if _asked is None or not _asked.is_set() or hasattr(sys, "last_value"):
        return None
    return 0


def _waiting_client() -> object | None:
    """The client in whose call for an engine's output the main thread is."""
    frame = _main_thread_in(_WAITS_IN)
    return None if frame is None else frame.f_locals.get("self")


def _main_thread_in(place: tuple[str, str]) -> FrameType | None:
    """The main thread's frame of a function, (module, name), if it is inside it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == place:
            return frame
        frame = frame.f_back
    return None
