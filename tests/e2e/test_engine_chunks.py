"""Logits are computed for the rows that sample and no others, and what these get is as if all had been."""

from __future__ import annotations

import pytest
from inprocess import runner
from vllm import SamplingParams

LONG = "a prompt that is longer than one chunk of thirty-two tokens, and then some more of it, so that it takes four"
BASE = {"max_tokens": 16, "ignore_eos": True}
KINDS = {
    "greedy": [{"temperature": 0}],
    "random": [{"temperature": 1, "seed": 1}, {"temperature": 0.7, "seed": 2, "top_k": 9}],
    "both": [{"temperature": 0}, {"temperature": 1, "seed": 3, "top_p": 0.8}],
    "by row": [
        {"temperature": 0, "logit_bias": {7: 4.0}},
        {"temperature": 1, "seed": 4, "min_p": 0.1},
        {"temperature": 0, "logprobs": 2},
    ],
}


class Counted:
    """How many rows of eager steps sample, of how many, and how many got logits."""

    def __init__(self, made, monkeypatch):
        self.steps, self.rows = [], 0
        self.eager, self.compute = made._eager, made.model.compute_logits
        monkeypatch.setattr(made, "_eager", self.step)
        monkeypatch.setattr(made.model, "compute_logits", self.logits)

    def logits(self, hidden):
        self.rows += len(hidden)
        return self.compute(hidden)

    def step(self, scheduled):
        self.rows = 0
        executed = self.eager(scheduled)
        self.steps.append((int(executed.inputs.finishing.sum()), executed.inputs.num_reqs, self.rows))
        return executed


def asked(kind):
    """Short prompts, whose decoding the chunks of the long ones accompany."""
    return [
        (f"{name}{text}", SamplingParams(**(BASE | feature)))
        for name, text in (("a:", ""), ("b", LONG), ("c:", ""), ("d", LONG))
        for feature in KINDS[kind]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_only_rows_that_sample_have_logits(engines, monkeypatch, kind):
    def run(name):
        requests = asked(kind)
        outputs = engines(name).generate([p for p, _ in requests], [s for _, s in requests], use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    whole = run("whole")
    for name in ("chunked", "tight_sync"):
        engines(name).reset_prefix_cache()
        counted = Counted(runner(engines(name)), monkeypatch)
        assert run(name) == whole
        assert all(rows == sampling for sampling, _, rows in counted.steps), counted.steps
        assert any(0 < sampling < count for sampling, count, _ in counted.steps), "no chunk beside a decoding row"


def test_a_step_of_chunks_alone_has_none(engines, monkeypatch):
    made = runner(engines("chunked"))
    engines("chunked").reset_prefix_cache()
    counted = Counted(made, monkeypatch)
    sent = []
    monkeypatch.setattr(
        made.copies, "send", lambda *args, send=made.copies.send, **how: sent.append(1) or send(*args, **how)
    )
    params = SamplingParams(temperature=0, max_tokens=1)
    prompt = f"nobody has asked this before: {LONG}"
    (output,) = engines("chunked").generate([prompt], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 1
    assert [rows for _, _, rows in counted.steps] == [0] * (len(counted.steps) - 1) + [1] and len(counted.steps) > 3
    assert len(sent) == 1, "a step without tokens copies none"
