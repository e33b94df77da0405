"""An engine process ends when the process that started it is gone, however that one died."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from multiprocessing.connection import wait

logger = logging.getLogger("vllm.aloft.parent")

_EXIT_CODE = 70
_started = False


def watch() -> bool:
    """Starts the watch in a process vLLM spawned; returns whether it runs (not in a user's own process)."""
    global _started
    parent = multiprocessing.parent_process()
    if parent is None or _started:
        return _started
    _started = True
    threading.Thread(target=_wait_and_exit, args=(parent,), name="aloft-parent-watch", daemon=True).start()
    return True


def _wait_and_exit(parent: multiprocessing.process.BaseProcess) -> None:
    wait([parent.sentinel])
    logger.error("Process %s, which started this engine, has ended; exiting.", parent.pid)
    os._exit(_EXIT_CODE)  # device memory is a file descriptor of this process: nothing to clean up
