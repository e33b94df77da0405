"""Each sampling feature does what it says, log-probabilities agree with Hugging Face, requests come and go."""

from __future__ import annotations

import json
import random

import pytest
import torch
from inprocess import core, counter, free_blocks, runner, scheduler, start
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

PROMPTS = ["hello there", "The capital of France is", "x" * 70]


def generate(llm, prompts=PROMPTS, **params):
    return llm.generate(prompts, SamplingParams(**({"max_tokens": 24, "ignore_eos": True} | params)), use_tqdm=False)


def tokens(outputs):
    return [list(o.outputs[0].token_ids) for o in outputs]


@pytest.fixture(scope="module")
def whole(engines):
    return engines("whole")


@pytest.fixture(scope="module")
def plain(whole):
    return tokens(generate(whole, temperature=0))


def test_allowed_tokens(whole):
    allowed = set(range(30, 40))
    for got in tokens(generate(whole, temperature=0, allowed_token_ids=sorted(allowed))):
        assert set(got) <= allowed


def test_bad_words_are_avoided(whole, plain):
    banned = [row[3] for row in plain]
    words = [whole.get_tokenizer().decode([token]) for token in banned]
    usable = [w for w in words if w.isascii() and w.isprintable() and w.strip()]
    outputs = generate(whole, temperature=0, bad_words=usable or ["a"])
    ids = {i for w in (usable or ["a"]) for i in whole.get_tokenizer().encode(w)}
    assert all(not ids & set(row) for row in tokens(outputs))


def test_logit_bias_forces_a_token(whole):
    assert tokens(generate(whole, temperature=0, logit_bias={42: 100.0})) == [[42] * 24] * 3


def test_min_tokens_and_end(whole):
    """The end is made likely: without min_tokens it comes first, with it as soon as allowed."""
    likely = {"temperature": 0, "logit_bias": {257: 100.0}, "ignore_eos": False}
    assert [len(row) for row in tokens(generate(whole, **likely))] == [1, 1, 1]
    assert [len(row) for row in tokens(generate(whole, **likely, min_tokens=7))] == [8, 8, 8]


def test_presence_penalty_forbids_repeats(whole):
    for row in tokens(generate(whole, temperature=0, presence_penalty=2.0, logit_bias=None, max_tokens=12)):
        assert len(row) == 12
    strong = generate(whole, temperature=0, repetition_penalty=1e6, max_tokens=12)
    assert all(len(set(row)) == 12 for row in tokens(strong))


def test_stop_string_and_stop_token(whole, plain):
    text = generate(whole, temperature=0)[0].outputs[0].text
    stop = next(c for c in text[2:] if c.isascii())
    (output,) = generate(whole, PROMPTS[:1], temperature=0, stop=[stop])
    assert output.outputs[0].text == text[: text.index(stop)] and output.outputs[0].stop_reason == stop
    (output,) = generate(whole, PROMPTS[:1], temperature=0, stop_token_ids=[plain[0][5]])
    assert list(output.outputs[0].token_ids) == plain[0][: plain[0].index(plain[0][5]) + 1]


def test_seeds_repeat_and_differ(whole):
    first, again, other = (tokens(generate(whole, temperature=1, seed=s)) for s in (1, 1, 2))
    assert first == again != other


def test_without_a_seed_samples_differ(whole):
    (output,) = generate(whole, PROMPTS[:1], temperature=1.5, n=4)
    assert len({tuple(o.token_ids) for o in output.outputs}) == 4


def test_samples_follow_the_distribution(whole):
    """400 first tokens against the model's own probabilities (total variation of the ten most likely)."""
    (greedy,) = generate(whole, PROMPTS[:1], temperature=0, logprobs=10, max_tokens=1)
    want = {t: pow(2.718281828459045, e.logprob) for t, e in greedy.outputs[0].logprobs[0].items()}
    count = 400
    outputs = generate(whole, PROMPTS[:1] * count, temperature=1, max_tokens=1)
    drawn = [row[0] for row in tokens(outputs)]
    for token, probability in want.items():
        error = abs(drawn.count(token) / count - probability)
        assert error < 5 * (probability * (1 - probability) / count) ** 0.5 + 0.01


def test_structured_output_is_valid_json(whole):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    asked = StructuredOutputsParams(json=schema)
    params = [
        SamplingParams(temperature=1, seed=i, max_tokens=120, structured_outputs=asked if i % 2 else None)
        for i in range(6)
    ]
    outputs = whole.generate([PROMPTS[i % 3] for i in range(6)], params, use_tqdm=False)
    for i in (1, 3, 5):
        if outputs[i].outputs[0].finish_reason == "stop":
            found = json.loads(outputs[i].outputs[0].text, strict=False)  # xgrammar lets control characters in
            assert set(found) == {"name", "n"} and isinstance(found["n"], int)
    choice = StructuredOutputsParams(choice=["Paris", "London"])
    outputs = generate(whole, temperature=0, structured_outputs=choice, ignore_eos=False)
    assert {o.outputs[0].text for o in outputs} <= {"Paris", "London"}


@pytest.fixture(scope="module")
def reference(model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def test_logprobs_agree_with_hugging_face(model, reference):
    llm = start(model, dtype="float32", max_num_batched_tokens=32)
    outputs = generate(llm, temperature=0, logprobs=4, prompt_logprobs=3, max_tokens=12)
    for output in outputs:
        prompt, new = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
        with torch.no_grad():
            scores = reference(torch.tensor([prompt + new])).logits[0].log_softmax(-1)
        assert new == scores[len(prompt) - 1 : -1].argmax(-1).tolist()
        found = [None, *output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        for position, token in enumerate((prompt + new)[1:], start=1):
            row, entries = scores[position - 1], found[position]
            assert token in entries and len(entries) >= 3
            for entry_token, entry in entries.items():
                assert entry.logprob == pytest.approx(row[entry_token].item(), abs=2e-4)
                assert entry.rank == int((row >= row[entry_token]).sum())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes(model, plain, dtype):
    llm = start(model, dtype=dtype)
    found = tokens(generate(llm, temperature=0))
    assert [row[:3] for row in found] == [row[:3] for row in plain]


def test_prefix_cache_hit_changes_nothing(engines):
    llm = engines("chunked")
    prompts = [f"{'shared beginning of a prompt ' * 5}{i}" for i in range(3)]
    llm.reset_prefix_cache()
    first = generate(llm, prompts, temperature=1, seed=3)
    second = generate(llm, prompts, temperature=1, seed=3)
    assert tokens(first) == tokens(second)
    assert all(o.num_cached_tokens >= 128 for o in second)


def test_streaming_gives_the_same_tokens_piece_by_piece(whole, plain):
    engine = whole.llm_engine
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(f"stream-{i}", prompt, params)
    pieces = {f"stream-{i}": [] for i in range(len(PROMPTS))}
    while engine.has_unfinished_requests():
        for output in engine.step():
            pieces[output.request_id].append(list(output.outputs[0].token_ids))
    for i, want in enumerate(plain):
        received = pieces[f"stream-{i}"]
        assert [token for piece in received for token in piece] == want and len(received) > 12


def test_aborted_requests_leave_every_block_free(engines):
    """Random arrivals and disconnects; the survivors' text is what it is without them."""
    llm = engines("chunked")
    llm.reset_prefix_cache()
    engine, rng = llm.llm_engine, random.Random(0)
    free = free_blocks(llm)
    want = {length: tokens(generate(llm, ["y" * length], temperature=0))[0] for length in (5, 40, 90)}
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    started, ended, kept = 0, set(), {}
    while started < 150 or engine.has_unfinished_requests():
        for _ in range(rng.randrange(3)):
            if started < 150:
                length = rng.choice((5, 40, 90))
                engine.add_request(f"r{started}", "y" * length, params)
                kept[f"r{started}"] = length
                started += 1
        for output in engine.step():
            if output.finished:
                ended.add(output.request_id)
                if output.request_id in kept:
                    assert list(output.outputs[0].token_ids) == want[kept[output.request_id]]
        for request in rng.sample(sorted(kept.keys() - ended), k=min(1, len(kept.keys() - ended))):
            if rng.random() < 0.6:
                del kept[request]
                engine.abort_request([request])
    assert len(kept) > 20
    while core(llm).batch_queue:
        engine.step()
    assert not runner(llm).requests.batch.req_ids or scheduler(llm).finished_req_ids
    llm.reset_prefix_cache()
    assert free_blocks(llm) == free


def test_custom_logits_processor(model, plain):
    llm = start(model, logits_processors=["logits_processor:OnlyOneToken"], num_gpu_blocks_override=100)
    forced = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, extra_args={"only": 33})
    free = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    outputs = llm.generate(PROMPTS, [forced, free, forced], use_tqdm=False)
    assert tokens(outputs) == [[33] * 5, plain[1][:5], [33] * 5]


def test_requests_wait_when_there_are_more_than_rows(whole):
    outputs = generate(whole, [f"number {i}" for i in range(50)], temperature=0, max_tokens=3)
    assert len(outputs) == 50 and all(len(row) == 3 for row in tokens(outputs))
    assert counter(whole, "num_requests_running") == 0


@pytest.mark.parametrize("prompt_tokens", [511, 600])
def test_a_prompt_that_is_too_long_is_refused_and_the_engine_goes_on(whole, plain, prompt_tokens):
    if prompt_tokens > 512:
        with pytest.raises(VLLMValidationError, match="512"):
            generate(whole, ["z" * prompt_tokens], temperature=0)
    else:
        assert [len(row) for row in tokens(generate(whole, ["z" * prompt_tokens], temperature=0))] == [1]
    assert tokens(generate(whole, temperature=0)) == plain


def test_linear_weights_are_packed(whole):
    import torch_npu

    packed = {
        name: torch_npu.get_npu_format(layer.weight)
        for name, layer in runner(whole).model.named_modules()
        if type(layer).__name__.endswith("Linear")
    }
    assert len(packed) == 8 and set(packed.values()) == {torch_npu.Format.FRACTAL_NZ}


@pytest.mark.parametrize("name", ["whole", "sync", "chunked"])
def test_captured_steps_are_counted_where_they_are_asked_for(engines, monkeypatch, name):
    """``--cudagraph-metrics``: every step with its tokens, its padding and whether it was replayed."""
    llm, seen = engines(name), []
    monkeypatch.setattr(
        llm.llm_engine.logger_manager,
        "record",
        lambda *args, scheduler_stats=None, **how: seen.append(scheduler_stats.cudagraph_stats),
    )
    prompts = [{"prompt_token_ids": [9, 3 + i, 5]} for i in range(3)]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
    counted = [stat for stat in seen if stat is not None]
    if name == "chunked":
        assert counted == [] and seen, "the flag is off"
        return
    rows = [(s.num_unpadded_tokens, s.num_padded_tokens, s.num_paddings, s.runtime_mode) for s in counted]
    assert rows == [(9, 9, 0, "NONE")] + [(3, 4, 1, "FULL")] * 3
