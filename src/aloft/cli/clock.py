"""A clock that knows what it is on: every second belongs to one phase of a start, and to the package being imported.

Standard library only, and little of it: it is loaded before what it times.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aloft.cli.start_phases import REST


class Clock:
    """Phases may lie within phases; the outer one's time does not hold the inner one's, so all of them add up.

    Only the thread that made it is timed: what others do meanwhile is no time of a start.
    """

    def __init__(self, began: float) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)  # of (phase, package or "")
        self._phase, self._package = REST, ""
        self._since = began
        self._thread = threading.get_ident()

    def _change(self, phase: str, package: str) -> tuple[str, str]:
        now = time.perf_counter()
        before = self._phase, self._package
        self.seconds[before] += now - self._since
        self._phase, self._package, self._since = phase, package, now
        return before

    def switch(self, phase: str) -> None:
        """From here on, and until the phase around ends, the time is another phase's."""
        self._change(phase, self._package)

    def so_far(self, phase: str) -> None:
        """What has gone by is a phase's."""
        now = time.perf_counter()
        self.seconds[phase, ""] += now - self._since
        self._since = now

    def stop(self) -> float:
        """All seconds since it began, those of all phases together."""
        self._change(REST, "")
        return sum(self.seconds.values())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before = self._change(name, "")
        try:
            yield
        finally:
            self._change(*before)

    def importing(self, name: str, run: Callable[..., Any], phase: str | None) -> Callable[..., Any]:
        """`run`, timed as (part of) the import of a package, and as a phase of its own where one is named."""

        def timed(*arguments: Any) -> Any:
            if threading.get_ident() != self._thread:
                return run(*arguments)
            before = self._change(phase or self._phase, name)
            try:
                return run(*arguments)
            finally:
                after = self._phase if phase is None else before[0]  # a switch in between stays
                self._change(after, before[1])

        return timed

    def package(self) -> str:
        """The package being imported by this thread, as far as the clock is concerned."""
        return self._package if threading.get_ident() == self._thread else "another thread"


class TimedImports:
    """A finder that finds nothing itself: it puts the clock on the loaders the other finders give.

    `phases` are top packages whose first import is a phase of its own, with all that it imports.
    """

    def __init__(self, clock: Clock, phases: dict[str, str]) -> None:
        self._clock, self._phases = clock, phases
        self._finding: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = name.partition(".")[0]
        phase = self._phases.get(name)
        asked = threading.get_ident(), name
        if asked in self._finding or (package == self._clock.package() and phase is None):
            return None  # the other finders ask all finders too; or there is nothing to change
        self._finding.add(asked)
        try:
            finders = (finder for finder in list(sys.meta_path) if finder is not self)
            spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        finally:
            self._finding.discard(asked)
        loader = spec.loader if spec is not None else None
        if loader is None or isinstance(loader, type) or package in sys.stdlib_module_names:
            return spec  # built in, frozen, a namespace, or of the library, which is its importer's time
        for part in ("create_module", "exec_module"):
            run = getattr(loader, part, None)
            if run is not None:
                setattr(loader, part, self._clock.importing(package, run, phase))
        return spec
