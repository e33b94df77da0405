"""Scoring in parts: what an interrupted run leaves is used, and only by the run it belongs to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy
import pytest

from aloft.cli.errors import UserError
from aloft.cli.evaluate import EvalSettings, _parts, evaluate
from aloft.evaluation.scores import score


class Engine:
    """Answers prompts with made-up log-probabilities; fails at the given call."""

    def __init__(self, fail_at: int = -1) -> None:
        self.calls, self.fail_at = 0, fail_at

    def generate(self, prompts, params, use_tqdm):
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        self.calls += 1
        return [SimpleNamespace(prompt_logprobs=self._answer(prompt["prompt_token_ids"])) for prompt in prompts]

    @staticmethod
    def _answer(piece):
        ids = [part for token in piece[1:] for part in (token, 7, token)]
        logs = [part for token in piece[1:] for part in (-float(token), -0.5, -1.0)]
        return SimpleNamespace(token_ids=ids, logprobs=logs)


def test_goes_on_where_it_stopped(tmp_path):
    pieces = [[index, index + 1, 7, index + 3] for index in range(20)]
    whole = score(Engine(), pieces, 2)
    assert whole.window.tolist() == [index for index in range(20) for _ in range(3)]
    assert whole.loss[:3].tolist() == [1, 7, 3] and whole.hit[:3].tolist() == [False, True, False]
    with pytest.raises(KeyboardInterrupt):
        score(Engine(fail_at=2), pieces, 2, kept=tmp_path / "parts")
    again = Engine()
    got = score(again, pieces, 2, kept=tmp_path / "parts")
    assert again.calls == 1
    for name, column in vars(whole).items():
        assert numpy.array_equal(column, vars(got)[name]), name
    other = Engine()
    score(other, [[*piece[:-1], 9] for piece in pieces], 2, kept=tmp_path / "parts")  # another text: scored anew
    assert other.calls == 3


def test_parts_belong_to_one_model(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    settings = EvalSettings(tmp_path / "text", save=tmp_path / "scores.npz")
    first = _parts(model, settings)
    assert first == _parts(model, settings)
    for change in ({"kv_cache_dtype": "fp8"}, {"additional_config": {"kv_fp8_window": 0}}):
        assert first != _parts(model, EvalSettings(tmp_path / "text", save=tmp_path / "scores.npz", **change))
    (model / "config.json").write_text("{ }")
    assert first != _parts(model, settings)


def test_window_longer_than_the_model(model, text):
    """Said before an engine starts, in the option's name."""
    with pytest.raises(UserError, match=r"--window must be at most 511 .*whose length is 512, not 512"):
        evaluate(model, EvalSettings(text, window=512))


def test_more_candidates_than_tokens(model, text):
    with pytest.raises(UserError, match=r"--candidates must be at most 320, the vocabulary of .*, not 321"):
        evaluate(model, EvalSettings(text, window=64, candidates=321))
