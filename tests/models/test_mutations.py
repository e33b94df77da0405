"""The greedy comparison can fail: each mistake of a list, made on purpose in a running engine, changes the tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import zoo
from .test_greedy import Case, start, stop

Patch = Callable[[pytest.MonkeyPatch, Case], None]


def _wrong_position(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Tokens after the prompt's first chunk are rotated one position too far."""
    from aloft.runner import inputs

    right = inputs._Cutter.take64
    patch.setattr(inputs._Cutter, "take64", lambda self, values: right(self, values + (values > 3)))


def _wrong_block(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Every second block of a sequence is written to its neighbour."""
    from aloft.runner.inputs import InputBuilder

    right = InputBuilder._slots

    def slots(self: Any, table: Any, rows: Any, positions: Any) -> Any:
        made = right(self, table, rows, positions)
        return made + table.block_size * ((positions // table.block_size) % 2 == 1)

    patch.setattr(InputBuilder, "_slots", slots)


def _mask_off_by_one(patch: pytest.MonkeyPatch, case: Case) -> None:
    """No token sees itself (the key length handed to attention is one short)."""
    from aloft.attention.metadata import AloftMetadataBuilder

    right = AloftMetadataBuilder.build

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = right(self, *args, **kwargs)
        starts = [0, *made.cu_query_lens[:-1]]
        queries = [end - start for start, end in zip(starts, made.cu_query_lens, strict=True)]
        made.kv_lens = [n - 1 if n > q else n for n, q in zip(made.kv_lens, queries, strict=True)]
        return made

    patch.setattr(AloftMetadataBuilder, "build", build)


def _window_off_by_one(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The sliding window shows one token more."""
    for impl in _impls(case):
        patch.setattr(impl, "window_left", impl.window_left + 1)


def _stale_block(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Keys and values of the last slot of every block are never written: what was there before is read."""
    from aloft.ops import decoder_layer

    right = decoder_layer.write_cache

    def write(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
        block_size = key_cache.shape[1]
        right(key, value, key_cache, value_cache, torch.where(slots % block_size == block_size - 1, -1, slots))

    patch.setattr(decoder_layer, "write_cache", write)


def _swapped_head(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Key heads are stored in reverse order."""
    from aloft.ops import decoder_layer

    right = decoder_layer.write_cache
    patch.setattr(decoder_layer, "write_cache", lambda key, *rest: right(key.flip(1), *rest))


def _wrong_rope_base(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The rotary tables are those of another base."""
    for module in _model(case).modules():
        if hasattr(module, "_compute_cos_sin_cache") and hasattr(module, "base"):
            patch.setattr(module, "base", module.base * 1.5)
            other = module._compute_cos_sin_cache().to(module.cos_sin_cache)
            patch.setitem(module._buffers, "cos_sin_cache", other)


MUTATIONS: dict[str, Patch] = {
    "wrong position": _wrong_position,
    "wrong block": _wrong_block,
    "mask off by one": _mask_off_by_one,
    "window off by one": _window_off_by_one,
    "stale cache block": _stale_block,
    "swapped head": _swapped_head,
    "wrong RoPE base": _wrong_rope_base,
}


def _model(case: Case) -> torch.nn.Module:
    worker = case.engine.llm_engine.model_executor.driver_worker.worker  # in-process engine
    return worker.get_model()


def _impls(case: Case) -> list[Any]:
    return [m.impl for m in _model(case).modules() if hasattr(m, "impl") and hasattr(m.impl, "window_left")]


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder: Path = zoo.build("mistral", tmp_path_factory.mktemp("zoo"))
    prompts = [zoo.prompts()[i] for i in (2, 4, 5)]
    references = [zoo.greedy(folder, p) for p in prompts]
    case = Case("mistral", start(folder, num_gpu_blocks_override=200), prompts, references)
    yield case
    stop(case.engine)
    case.engine = None


def test_unchanged(mistral: Case) -> None:
    mistral.expect(mistral.generate(mistral.prompts))


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_noticed(mistral: Case, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mistral.engine.reset_prefix_cache()
    with monkeypatch.context() as patch:
        MUTATIONS[name](patch, mistral)
        got = mistral.generate(mistral.prompts)
    assert mistral.engine.reset_prefix_cache()
    wrong = [i for i, r in enumerate(mistral.references) if got[i] != r.tokens]
    assert wrong, f"{name}: the tokens are the same as without the mistake"
    mistral.expect(mistral.generate(mistral.prompts))  # and the engine is whole again
    assert mistral.engine.reset_prefix_cache()
