"""Time that operators take on the present runtime, by name: eager work and replayed graphs alike."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

from aloft.runtime.autoload import virtual


@dataclass(frozen=True)
class OperatorTime:
    """What one operator took while it was timed. Seconds; bytes and operations are 0 where they are not known."""

    name: str
    calls: int
    seconds: float
    bytes: float
    """Read and written, every operand once."""
    operations: float
    """A multiply-add counts two."""


class OperatorTimes(list[OperatorTime]):
    """Empty inside the block, filled at its end, the longest first."""

    @property
    def seconds(self) -> float:
        """Time in operators altogether."""
        return sum(entry.seconds for entry in self)


@contextlib.contextmanager
def operator_times() -> Iterator[OperatorTimes]:
    """Time every unit of work that is launched, or replayed, on any stream of this process inside the block.

    An operator that launches others counts without them. The caller synchronizes the device before the end where
    streams are asynchronous. Not to be nested.

    Raises:
        RuntimeError: the runtime is CANN, where torch_npu's own profiler does this (not tried).
    """
    if not virtual():
        raise RuntimeError(
            "operators are timed on the virtual NPU only; on CANN use torch_npu.profiler.profile(), whose "
            "op_statistic.csv has the time by operator"
        )
    library = ctypes.CDLL(None)
    report = library.aloftTimingReport
    report.restype = ctypes.c_size_t
    report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    times = OperatorTimes()
    library.aloftTimingStart()
    try:
        yield times
    finally:
        library.aloftTimingStop()
        size = report(None, 0) + 1
        text = ctypes.create_string_buffer(size)
        report(text, size)
        times.extend(_parsed(text.value.decode()))
        times.sort(key=lambda entry: -entry.seconds)


def _parsed(text: str) -> Iterator[OperatorTime]:
    for line in text.splitlines():
        name, calls, nanoseconds, size, operations = line.rsplit("\t", 4)
        yield OperatorTime(name, int(calls), int(nanoseconds) * 1e-9, float(size), float(operations))
