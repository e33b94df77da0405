"""The executor calls the worker directly and hands on what it gives, awaited or not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.outputs import AsyncModelRunnerOutput

from aloft.runner.executor import DirectExecutor


class Late(AsyncModelRunnerOutput):
    asked = 0

    def get_output(self):
        self.asked += 1
        return "tokens"


@pytest.fixture
def executor():
    made = DirectExecutor.__new__(DirectExecutor)
    made.late = Late()
    worker = SimpleNamespace(sample_tokens=lambda grammar: made.late if grammar is None else grammar)
    made.driver_worker = SimpleNamespace(worker=worker, execute_model=lambda step: step)
    return made


def test_what_is_awaited_is_asked_for_once(executor):
    outcome = executor.sample_tokens(None, non_block=True)
    assert outcome.done() and executor.late.asked == 0
    assert outcome.result() == outcome.result() == "tokens" and executor.late.asked == 1
    assert executor.sample_tokens(None) == "tokens"


def test_what_is_there_is_handed_on(executor):
    assert executor.sample_tokens("bitmask") == "bitmask"
    assert executor.execute_model(None) is None
    assert executor.execute_model(None, non_block=True).result() is None


def test_errors_come_from_the_call(executor):
    def fail(step):
        raise RuntimeError("no")

    executor.driver_worker.execute_model = fail
    with pytest.raises(RuntimeError, match="no"):
        executor.execute_model(None, non_block=True)
