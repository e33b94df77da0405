"""Whatever the engine does on the way - chunks, preemption, other requests in the batch, asynchronous scheduling,
either scheduler format - a request's tokens and log-probabilities are the same, for every sampling feature."""

from __future__ import annotations

import functools
import itertools

import pytest
from inprocess import ENGINES, counter, runner, scheduler
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

LONG = "a prompt that is longer than one chunk of thirty-two tokens, and then some more of it, so that it takes four"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}
BASE = {"max_tokens": 40, "ignore_eos": True}
FEATURES = {
    "greedy": {"temperature": 0},
    "seed": {"temperature": 1, "seed": 1},
    "top_k": {"temperature": 1, "seed": 2, "top_k": 5},
    "top_p": {"temperature": 1, "seed": 3, "top_p": 0.7},
    "top_k_top_p": {"temperature": 0.8, "seed": 4, "top_k": 20, "top_p": 0.8},
    "min_p": {"temperature": 1, "seed": 5, "min_p": 0.1},
    "presence": {"temperature": 0, "presence_penalty": 1.5},
    "frequency": {"temperature": 0, "frequency_penalty": 1.0},
    "repetition": {"temperature": 0, "repetition_penalty": 1.5},
    "penalties_seeded": {"temperature": 1, "seed": 6, "presence_penalty": 1.0, "repetition_penalty": 1.2},
    "logit_bias": {"temperature": 0, "logit_bias": {7: 4.0, 9: 3.0}},
    "bad_words": {"temperature": 0, "bad_words": ["e", "th"]},
    "allowed": {"temperature": 0, "allowed_token_ids": list(range(20, 60))},
    "min_tokens": {"temperature": 0, "min_tokens": 10, "ignore_eos": False, "logit_bias": {257: 100.0}},
    "stop": {"temperature": 1, "seed": 7, "stop": ["a", "e", "t"], "include_stop_str_in_output": True},
    "logprobs": {"temperature": 0, "logprobs": 3},
    "prompt_logprobs": {"temperature": 0, "prompt_logprobs": 2, "logprobs": 0},
    "structured": {"temperature": 0, "structured_outputs": StructuredOutputsParams(json=SCHEMA), "ignore_eos": False},
    "n": {"temperature": 1, "seed": 8, "n": 3},
}


def requests():
    """Every feature twice: after a short prompt, and after one of several chunks. All of them make one batch."""
    return [
        (f"{name} {size}", prompt, SamplingParams(**(BASE | feature)))
        for name, feature in FEATURES.items()
        for size, prompt in (("short", f"{name}:"), ("long", f"{name} {LONG}"))
    ]


def outcome(output):
    """What must not change: tokens, reasons, log-probabilities."""
    prompt = output.prompt_logprobs
    return {
        "tokens": [list(o.token_ids) for o in output.outputs],
        "reasons": [o.finish_reason for o in output.outputs],
        "logprobs": [[ranked(at) for at in o.logprobs or ()] for o in output.outputs],
        "prompt_logprobs": [at and ranked(at) for at in prompt] if prompt else None,
    }


def ranked(at):
    return {token: (round(entry.logprob, 2), entry.rank) for token, entry in at.items()}


@pytest.fixture(scope="module")
def run(engines):
    @functools.cache
    def run(name):
        llm, asked = engines(name), requests()
        outputs = llm.generate([p for _, p, _ in asked], [s for _, _, s in asked], use_tqdm=False)
        return {key: outcome(output) for (key, _, _), output in zip(asked, outputs, strict=True)}

    return run


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "whole"])
def test_every_feature_is_the_same(run, name):
    wrong = [key for key, want in run("whole").items() if run(name)[key] != want]
    assert not wrong


@pytest.mark.parametrize("name", ["tight", "tight_sync", "v2"])
def test_the_tight_engines_did_preempt(run, engines, name):
    run(name)
    assert counter(engines(name), "num_preemptions") > 3
    runner(engines(name)).requests.check_integrity()
    assert scheduler(engines(name)).use_v2_model_runner == (name == "v2")


@pytest.mark.parametrize("feature", FEATURES)
def test_alone_is_as_in_a_batch(run, engines, feature):
    for key, prompt, params in requests():
        if key.split()[0] == feature:
            (output,) = engines("whole").generate([prompt], params, use_tqdm=False)
            assert outcome(output) == run("whole")[key]


class _Late:
    """A stream whose work is over when asked only at some of the steps."""

    def __init__(self, stream, over):
        self.stream, self.over, self.asked = stream, itertools.cycle(over), 0

    def query(self):
        self.asked += 1
        over = next(self.over)
        if over:
            self.stream.synchronize()
        return over

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.mark.parametrize("over", [(True, True, False), (True, True, True, False, False), (False,)])
def test_tokens_that_arrive_late_are_the_same(run, engines, monkeypatch, over):
    """Steps that go on from the last one's inputs, in turns with steps whose tokens are not known in time."""
    made, engine = runner(engines("whole")), engines("whole")
    late = _Late(made.stream, over)
    monkeypatch.setattr(made, "stream", late)
    (output,) = engine.generate([f"greedy {LONG}"], SamplingParams(**(BASE | FEATURES["greedy"])), use_tqdm=False)
    assert outcome(output) == run("whole")["greedy long"]
    assert late.asked >= 5


def test_the_text_keeps_changing(run):
    """Otherwise the comparisons above could not fail."""
    for key in ("greedy long", "seed long", "presence long"):
        (tokens,) = run("whole")[key]["tokens"]
        assert len(set(tokens)) >= 16
    assert run("whole")["seed short"]["tokens"] != run("whole")["greedy short"]["tokens"]
    assert len({tuple(t) for t in run("whole")["n short"]["tokens"]}) == 3
