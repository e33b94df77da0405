"""The one sentence in vLLM's traces and logs, and the flags that are checked before it starts."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, model_validator

from aloft.cli import flags, reason
from aloft.cli.errors import UserError
from aloft.errors import NotEnoughMemory


class _Config(BaseModel):
    @model_validator(mode="after")
    def refuse(self) -> _Config:
        raise ValueError("--size must be 1, not 2 [units].")


def _pydantic() -> ValueError:
    with pytest.raises(ValueError) as raised:
        _Config()
    return raised.value


def test_pydantic_is_stripped() -> None:
    text = str(_pydantic())
    assert text.startswith("1 validation error for _Config") and "[type=" in text
    assert reason.sentence(text) == "--size must be 1, not 2 [units]."
    assert reason.sentence("plain [1]") == "plain [1]"


def test_errors_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, said in (
        (_pydantic(), "--size must be 1, not 2 [units]."),
        (NotEnoughMemory("The weights need 2 GiB."), "The weights need 2 GiB."),
        (OSError("no config.json"), "no config.json"),
    ):
        with pytest.raises(UserError) as told, reason.told():
            raise error
        assert str(told.value) == said
        with monkeypatch.context() as patched, pytest.raises(type(error)), reason.told():
            patched.setenv("VLLM_LOGGING_LEVEL", "debug")
            raise error
    with pytest.raises(AssertionError), reason.told():  # a bug of ours keeps its trace
        raise AssertionError("x")


ENGINE = """\x1b[1;36m(EngineCore pid=7)\x1b[0;0m ERROR 11-30 02:00:00 [core.py:1] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 02:00:00 [core.py:1]     raise NotEnoughMemory(
(EngineCore pid=7) ERROR 11-30 02:00:00 [core.py:1] aloft.errors.NotEnoughMemory: The weights need 2 GiB; use less.
(APIServer pid=6)   File "/x/core.py", line 3
(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.
[ERROR] 2026-11-30-02:00:22 (PID:6, Device:0, RankID:-1) ERR99999 UNKNOWN application exception
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (ENGINE, "The weights need 2 GiB; use less."),
        (ENGINE.replace("aloft.errors.NotEnoughMemory", "torch.OutOfMemoryError"), "The weights need 2 GiB; use less."),
        ("[rank0]: Traceback\n[rank0]: ValueError: wrong\n[ERROR] noise", "wrong"),
        ("usage: vllm serve\nvllm serve: error: argument --dtype: invalid choice", "argument --dtype: invalid choice"),
        ("INFO 11-30 02:00:00 [x.py:1] Error rate: none\nbye", None),
        ("", None),
    ],
)
def test_logs(log: str, said: str | None) -> None:
    assert reason.of_log(log) == said


def test_pydantic_in_a_log() -> None:
    assert reason.of_log(f"Traceback\n  File x\npydantic_core.ValidationError: {_pydantic()}\n") == (
        "--size must be 1, not 2 [units]."
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tensor-parallel-size", "2"], "tensor parallelism yet: --tensor-parallel-size must be 1, not 2"),
        (["--enforce-eager", "-tp=3"], "--tensor-parallel-size must be 1, not 3"),
        (["--pipeline_parallel_size=2"], "--pipeline-parallel-size must be 1, not 2"),
        (["--additional-config", "{num_threads: 2}"], "--additional-config must be JSON, such as"),
        (["--additional-config=[1]"], "must be a JSON object"),
        (["--additional-config", '{"num_thread": 2}'], "did you mean 'num_threads'?"),
        (["--additional-config", '{"num_threads": "2"}'], "num_threads must be of type int, not '2'"),
    ],
)
def test_flags_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError) as raised:
        flags.check(arguments)
    assert said in str(raised.value) and not str(raised.value).endswith("?.")


def test_flags_accepted() -> None:
    flags.check([])
    flags.check(["-tp", "1", "--tensor-parallel-size", "--additional-config", '{"num_threads": 2}', "--max-num-seqs=9"])
