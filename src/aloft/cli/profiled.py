"""Scheduler and worker with a clock, for `aloft profile`: given to vLLM through its own options, nothing is patched."""

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
