"""Time that operators take on the present runtime, by name: eager work and replayed graphs alike."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from aloft.runtime.autoload import virtual


class TimingUnavailable(RuntimeError):
    """Operators cannot be timed here, or what was to hold their times does not; the message says what is missing."""


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

    note: str = ""
    """What is unlike the usual about these times, a sentence for people."""

    @property
    def seconds(self) -> float:
        """Time in operators altogether."""
        return sum(entry.seconds for entry in self)


class OperatorTimer(Protocol):
    """What times the operators of a runtime."""

    slows_host: bool
    """Whether the host is so much slower inside the block that its own time is to be taken in another run."""
    note: str
    """Where the times come from and what is not known of them, for people; empty where there is nothing to say."""

    def times(self) -> AbstractContextManager[OperatorTimes]:
        """Time every unit of work that runs on any stream of this process inside the block.

        The caller synchronizes the device at both ends where streams are asynchronous. Not to be nested.

        Raises:
            TimingUnavailable: at the end of the block, the times cannot be had.
        """
        ...


def operator_timer() -> OperatorTimer:
    """The present runtime's.

    Raises:
        TimingUnavailable: there is none.
    """
    if virtual():
        return VirtualTimer()
    from aloft.runtime.cann_timing import CannTimer

    return CannTimer()


def operator_times() -> AbstractContextManager[OperatorTimes]:
    """`operator_timer().times()`."""
    return operator_timer().times()


class VirtualTimer:
    """The virtual NPU's own clock. An operator that launches others counts without them."""

    slows_host = False
    note = ""

    @contextlib.contextmanager
    def times(self) -> Iterator[OperatorTimes]:
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
