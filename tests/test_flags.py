"""vLLM's flags through its own entry point: each is honoured, or a warning says what happens instead.

Every case makes a whole ``VllmConfig`` of ``EngineArgs``, so that what vLLM itself rewrites on the way counts too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from aloft.runtime import capability

LADDER = [1, 2, 4, 8, 16, 24, 32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as far as its configuration goes."""
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("flags")
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=320,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=256,
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What aloft warns of, as it reaches the handlers of vLLM's logger."""
    from vllm import logger as vllm_logger

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.startswith("vllm.aloft.") and record.levelno >= logging.WARNING:
                messages.append(record.getMessage())

    messages: list[str] = []
    handler, root = Kept(), logging.getLogger("vllm")
    vllm_logger._print_warning_once.cache_clear()
    root.addHandler(handler)
    yield messages
    root.removeHandler(handler)


def made(model: Path, **flags: object) -> object:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(model), skip_tokenizer_init=True, max_num_seqs=16, **flags).create_engine_config()


@pytest.mark.parametrize(
    ("flags", "mode", "sizes", "words"),
    [
        ({}, "FULL_DECODE_ONLY", LADDER, ""),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, "NONE", [], ""),
        ({"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}, "FULL_DECODE_ONLY", LADDER, ""),
        ({"compilation_config": {"cudagraph_mode": "FULL"}}, "FULL_DECODE_ONLY", LADDER, "FULL becomes"),
        (
            {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
            "FULL_DECODE_ONLY",
            LADDER,
            "FULL_AND_PIECEWISE becomes FULL_DECODE_ONLY",
        ),
        ({"compilation_config": {"cudagraph_mode": "PIECEWISE"}}, "NONE", [], "PIECEWISE is not supported"),
        (
            {"compilation_config": {"cudagraph_mode": "PIECEWISE"}, "cudagraph_capture_sizes": [1, 4]},
            "NONE",
            [],
            "PIECEWISE is not supported",
        ),
        ({"enforce_eager": True}, "NONE", [], ""),
        ({"enforce_eager": True, "compilation_config": {"cudagraph_mode": "FULL"}}, "NONE", [], ""),
        ({"optimization_level": 0}, "NONE", [], ""),
        ({"optimization_level": 1}, "FULL_DECODE_ONLY", LADDER, ""),
        ({"cudagraph_capture_sizes": [6, 1, 3]}, "FULL_DECODE_ONLY", [1, 3, 6], ""),
        ({"compilation_config": {"cudagraph_capture_sizes": [5, 2]}}, "FULL_DECODE_ONLY", [2, 5], ""),
        ({"max_cudagraph_capture_size": 8}, "FULL_DECODE_ONLY", [1, 2, 4, 8], ""),
        ({"cudagraph_capture_sizes": [2, 8], "max_cudagraph_capture_size": 8}, "FULL_DECODE_ONLY", [2, 8], ""),
        ({"compilation_config": {"mode": 3}}, "FULL_DECODE_ONLY", LADDER, "Compilation is not supported"),
    ],
)
def test_capture(model: Path, said: list[str], flags: dict[str, object], mode: str, sizes: list[int], words: str):
    compilation = made(model, **flags).compilation_config
    assert compilation.cudagraph_mode.name == mode and compilation.mode.name == "NONE"
    assert compilation.cudagraph_capture_sizes == sizes
    assert compilation.max_cudagraph_capture_size == max(sizes, default=0)
    assert len(said) == bool(words) and all(words in message for message in said), said


@pytest.mark.parametrize(
    ("beside", "asked", "depth", "wanted", "words"),
    [
        (False, None, 0, False, ""),
        (False, True, 0, True, "--async-scheduling slows"),
        (False, False, 0, False, ""),
        (False, None, 1, False, ""),
        (False, False, 1, False, ""),
        (False, None, 2, True, ""),
        (False, True, 2, True, ""),
        (True, None, 0, True, ""),
        (True, True, 0, True, ""),
        (True, False, 0, False, ""),
        (True, None, 1, False, ""),
    ],
)
def test_asynchronous_scheduling(
    model: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, beside: bool, asked: bool | None, depth: int,
    wanted: bool, words: str,
):  # fmt: skip
    from vllm.config.utils import replace

    monkeypatch.setattr(capability, "computes_beside_host", lambda: beside)
    config = made(model, async_scheduling=asked, additional_config={"pipeline_depth": depth} if depth else {})
    assert config.scheduler_config.async_scheduling is wanted
    assert len(said) == bool(words) and all(words in message for message in said), said
    # vLLM makes copies of a config and checks them, with nobody's flags at hand
    assert replace(config).scheduler_config.async_scheduling is wanted
    assert config.scheduler_config.async_scheduling is wanted


@pytest.mark.parametrize(("asked", "depth"), [(True, 1), (False, 2)])
def test_flags_that_contradict_each_other_are_refused(model: Path, asked: bool, depth: int):
    with pytest.raises(ValueError, match=rf"pipeline_depth {depth} .*--(no-)?async-scheduling"):
        made(model, async_scheduling=asked, additional_config={"pipeline_depth": depth})
