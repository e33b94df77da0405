"""How many host threads an engine uses: the machine's cores are shared by the engines alive on it, not multiplied.

Every engine holds an abstract Unix socket whose name the kernel frees when the process ends, however it ends; the
number of such names is the number of engines.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import socket
import time
from pathlib import Path

import torch

from aloft.runtime.choice import library_folder

logger = logging.getLogger("vllm.aloft.threads")

_PREFIX = "aloft-engine-"
_POLL_SECONDS = 1.0
_SET_BY_VLLM = "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"


def cores() -> int:
    """Cores this process may use: affinity mask and cgroup quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no cgroup v2 quota here
    return count


def live_engines() -> int:
    """Engines alive in this network namespace, this process's own included."""
    return len(_names())


def _names() -> set[str]:
    """The engines' names, each of which begins with its process id."""
    with open("/proc/net/unix") as table:
        names = {line.rsplit(" ", 1)[-1].strip() for line in table}
    return {name.removeprefix(f"@{_PREFIX}") for name in names if name.startswith(f"@{_PREFIX}")}


def set_threads(count: int) -> None:
    """Sets the thread count of the calling thread's torch operators and of the native kernels."""
    torch.set_num_threads(count)
    setter = _kernel_setter()
    if setter is not None:
        setter(count)


@functools.cache
def _kernel_setter() -> ctypes._FuncPointer | None:  # type: ignore[name-defined]
    path = library_folder() / "libaloft_kernels.so"
    if not path.exists():
        return None  # CANN runs the operators
    setter = getattr(ctypes.CDLL(str(path)), "aloftSetNumThreads", None)
    if setter is not None:
        setter.argtypes, setter.restype = [ctypes.c_int], None
    return setter


class ThreadShare:
    """This engine's share of the cores; ``poll`` adjusts it as engines come and go."""

    def __init__(self, fixed: int = 0) -> None:
        """fixed: a count the user chose (additional_config ``num_threads``); 0 shares."""
        by_user = os.environ.get("OMP_NUM_THREADS", "") if os.environ.get(_SET_BY_VLLM) != "1" else ""
        self.fixed = fixed or (int(by_user) if by_user.isdigit() else 0)
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._name.bind(f"\0{_PREFIX}{os.getpid()}-{id(self):x}")
        self._next_poll = 0.0
        self.count = 0
        self.poll()

    def poll(self) -> None:
        """Re-reads the number of engines (at most once a second) and applies the share to the calling thread."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + _POLL_SECONDS
        count = self.fixed or max(1, cores() // max(1, live_engines()))
        if count != self.count:
            logger.info("This engine uses %d host thread%s.", count, "" if count == 1 else "s")
            self.count = count
            set_threads(count)

    def close(self) -> None:
        self._name.close()
