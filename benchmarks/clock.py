"""How much time a run has left: `--quick` promises an end, so what no longer fits is left out and named."""

from __future__ import annotations

import time

from plan import LEFT_OUT

#: Seconds that parts of a run may take on two cores, generously. A part begins while it still fits; one that takes
#: longer nevertheless is cut off at the limit (`cap`).
EXPECTED = {
    "start": 15,
    "prefill": 25,
    "decode": 20,
    "imports": 20,
    "route": 20,
    "steps": 60,
    "server": 30,
    "idle": 10,  # requests to servers that have nothing else to do
    "online": 20,
}


class Clock:
    """Counts from now. limit: seconds a run may take; None: as long as it needs."""

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._end = None if limit is None else time.monotonic() + limit

    def left(self) -> float | None:
        """Seconds; never below a tenth, so that it can be a timeout. None: no limit."""
        return None if self._end is None else max(0.1, self._end - time.monotonic())

    def cap(self, seconds: float) -> float:
        """As many seconds, or what is left."""
        return min(seconds, self.left() or seconds)

    def allows(self, part: str) -> bool:
        """Whether a part of EXPECTED still fits."""
        return self._end is None or time.monotonic() + EXPECTED[part] <= self._end

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    @property
    def reason(self) -> str:
        """Why something was left out."""
        return f"{LEFT_OUT} (its {self._limit or 0:.0f} seconds would not have been enough)"
