"""Scheduler and worker with a clock, for `aloft profile`: given to vLLM through its own options, nothing is patched.

A request's detokenizer has no option; `time_detokenizers` exchanges those of the requests at hand.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from aloft.runner.worker import AloftWorker

SECONDS: dict[str, float] = defaultdict(float)
"""What each part took in this process, by name."""


@contextlib.contextmanager
def _clock(part: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        SECONDS[part] += time.perf_counter() - started


class _Timed:
    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        with _clock("schedule"):
            return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        with _clock("update"):
            return super().update_from_output(*args, **kwargs)  # type: ignore[misc]


class TimedScheduler(_Timed, Scheduler):
    """vLLM's scheduler."""


class TimedAsyncScheduler(_Timed, AsyncScheduler):
    """vLLM's scheduler for asynchronous scheduling."""


class TimedWorker(AloftWorker):
    """aloft's worker."""

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        with _clock("execute"):
            return super().execute_model(*args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        with _clock("sample"):
            return super().sample_tokens(*args, **kwargs)


class TimedDetokenizer:
    """A request's detokenizer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update(self, *args: Any) -> Any:
        started = time.perf_counter()  # once a row and step: a context would cost as much as what it measures
        found = self._inner.update(*args)
        SECONDS["detokenize"] += time.perf_counter() - started
        return found


def time_detokenizers(output_processor: Any) -> None:
    """Puts a clock on the detokenizers of all requests an engine has taken."""
    for state in output_processor.request_states.values():
        if state.detokenizer is not None and not isinstance(state.detokenizer, TimedDetokenizer):
            state.detokenizer = TimedDetokenizer(state.detokenizer)
