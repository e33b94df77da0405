"""Scoring in parts: what an interrupted run leaves is used, and only by the run it belongs to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_dtype": "bogus"}, r"--kv-cache-dtype must be auto, bfloat16, fp8 or fp8_e4m3, not bogus\.$"),
        ({"text": "short"}, r"--text has 5 tokens; a window needs 64 \(--window\)$"),
        ({"text": "none"}, r"--text .*none is not a file\.$"),
        ({"save": "away/scores.npz"}, r"--save .*away/scores\.npz: there is no folder .*away\.$"),
        ({"save": "."}, r"--save .* is a folder; name a file, such as .*scores\.npz\.$"),
    ],
)
def test_mistakes_are_told_before_an_engine_starts(changes, words, model, text, tmp_path, monkeypatch):
    import vllm

    monkeypatch.setattr(vllm, "LLM", None)
    (tmp_path / "short").write_text("short")
    said = {name: tmp_path / value if name in ("text", "save") else value for name, value in changes.items()}
    with pytest.raises(UserError, match=words):
        evaluate(model, EvalSettings(**({"text": text, "window": 64} | said)))
    assert [file.name for file in tmp_path.iterdir()] == ["short"]


def test_a_reference_of_other_tokens(model, text, tmp_path, monkeypatch):
    """Also told before the first model is scored."""
    import vllm

    monkeypatch.setattr(vllm, "LLM", None)
    other = tmp_path / "other"
    shutil.copytree(model, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = [["t", "h"]]
    tokenizer["model"]["vocab"]["th"] = 300
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="--reference makes other tokens of the text"):
        evaluate(model, EvalSettings(text, window=64, reference=other))


def test_json_is_a_row_of_the_table(model, text, tmp_path, capsys):
    from aloft.quantizer import Settings, quantize

    made = quantize(model, tmp_path / "out", Settings("w8a16"))
    settings = EvalSettings(
        text, window=64, tokens=126, save=tmp_path / "scores", reference=model, as_json=True, candidates=5
    )
    assert evaluate(tmp_path / "out", settings) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["scheme"], said["weight_ratio"], said["tokens"]) == ("w8a16", made.weight_ratio, 126)
    for name in ("accuracy_kept", "perplexity_rise", "kl"):
        low, high = said[f"{name}_95"]
        assert low is not None and low <= said[name] <= high
    assert 0.9 < said["accuracy_kept"] <= 1.1 and -1e-6 < said["kl"] < 0.01
    plain = EvalSettings(text, window=64, tokens=126, reference=tmp_path / "scores", as_json=True, candidates=5)
    assert evaluate(model, plain) == 0  # what --save wrote has the name that was given
    said = json.loads(capsys.readouterr().out)
    assert (said["scheme"], said["weight_ratio"]) == ("bfloat16", 1.0)


def test_the_reports_rows():
    """The accuracy table that is committed: rows as the issue asks, everything else beside them."""
    said = json.loads((Path(__file__).parents[2] / "benchmarks/results/quantization-latest.json").read_text())
    keys = {"scheme", "accuracy_kept", "perplexity_rise", "kl", "weight_ratio", "tokens"}
    assert said["rows"] and all(set(row) == keys and row["tokens"] >= 100_000 for row in said["rows"])
    assert set(said["details"]) == {row["scheme"] for row in said["rows"]}
