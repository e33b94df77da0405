"""vLLM's executor for a single worker in the engine's own process, with the two calls of a step made directly.

The base class sends every call through a general remote call and a future with a lock of its own: 0.1 ms a step, in
the time between two steps, when nothing lies in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput


class Outcome:
    """What a call returned, in the place of the future the engine asks for: `done` and `result` is all it uses."""

    __slots__ = ("_value",)

    def __init__(self, value: ModelRunnerOutput | AsyncModelRunnerOutput | None) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self) -> ModelRunnerOutput | None:
        """The output of the step; waits for its tokens if they are still on the device."""
        value = self._value
        if isinstance(value, AsyncModelRunnerOutput):
            value = self._value = value.get_output()
        return value


class DirectExecutor(UniProcExecutor):
    """See the module. Errors of a step are raised by the call itself."""

    def execute_model(  # type: ignore[override]  # an Outcome is no Future
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> Any:
        outcome = Outcome(self.driver_worker.execute_model(scheduler_output))
        return outcome if non_block else outcome.result()

    def sample_tokens(  # type: ignore[override]
        self, grammar_output: GrammarOutput | None, non_block: bool = False
    ) -> Any:
        worker: Any = self.driver_worker.worker
        outcome = Outcome(worker.sample_tokens(grammar_output))
        return outcome if non_block else outcome.result()

    def collective_rpc(  # type: ignore[override]
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        single_value: bool = False,
    ) -> Any:
        """As the base class; what is called may change the model, wherever it has it from."""
        runner = getattr(self.driver_worker.worker, "model_runner", None)
        if runner is not None:
            runner.interrupt()
        return super().collective_rpc(method, timeout, args, kwargs, non_block, single_value)
