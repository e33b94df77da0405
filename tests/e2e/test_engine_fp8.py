"""A KV cache of 8-bit floats in engines: its numbers, what a window changes, and that nothing on the way matters."""

from __future__ import annotations

import functools

import pytest
import torch
from inprocess import counter, runner, start
from vllm import SamplingParams

from aloft.ops import fp8_cache

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want. "
PROMPTS = [TEXT * 3, "hello", TEXT * 3 + "However little known", TEXT[7:] * 2]
WINDOWS = [0, 40]
WHOLE = {"max_num_batched_tokens": 2048, "enforce_eager": True, "enable_prefix_caching": False}
WIDE = {"dtype": "float32"}
ENGINES = {
    "whole": WHOLE,
    "graphs": {"max_num_batched_tokens": 2048, "enable_prefix_caching": False},
    "unfused": WHOLE | {"additional_config": {"fusion_level": "none"}},
    "wide": WHOLE | WIDE,
    "chunked": WIDE | {"max_num_batched_tokens": 48},
    "tight": WIDE | {"max_num_batched_tokens": 48, "num_gpu_blocks_override": {0: 45, 40: 57}},
}


def settings(window, name):
    made = dict(ENGINES[name])
    made["additional_config"] = made.get("additional_config", {}) | {"kv_fp8_window": window}
    if name == "tight":
        made["num_gpu_blocks_override"] = made["num_gpu_blocks_override"][window]
    return made


@pytest.fixture(scope="module")
def fp8_engines(model, engines):
    engines("whole")  # vLLM's process groups exist from here on

    @functools.cache
    def get(window, name):
        return start(model, kv_cache_dtype="fp8", **settings(window, name))

    return get


def answers(llm, prompts=PROMPTS, max_tokens=40, **params):
    asked = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=0, **params)
    return llm.generate(prompts, asked, use_tqdm=False)


def said(outputs):
    """Tokens and log-probabilities of every answer."""
    return [[(t, at[t].logprob) for t, at in zip(o.token_ids, o.logprobs, strict=True)] for (o,) in _each(outputs)]


def compare(got, want):
    for mine, theirs in zip(got, want, strict=True):
        assert [token for token, _ in mine] == [token for token, _ in theirs]
        torch.testing.assert_close(*(torch.tensor([p for _, p in of]) for of in (mine, theirs)), rtol=0, atol=5e-3)


def _each(outputs):
    return [output.outputs for output in outputs]


@pytest.mark.parametrize("name", ["graphs", "unfused"])
@pytest.mark.parametrize("window", WINDOWS)
def test_other_calls_of_the_same_steps_are_the_same_bit_for_bit(fp8_engines, window, name):
    llm = fp8_engines(window, name)
    assert said(answers(llm)) == said(answers(fp8_engines(window, "whole")))
    if name == "graphs":
        assert runner(llm).graphs.graphs and not runner(llm).graphs.refused


@pytest.mark.parametrize("name", ["chunked", "tight"])
@pytest.mark.parametrize("window", WINDOWS)
def test_other_steps_are_the_same_but_for_rounding(fp8_engines, window, name):
    """Chunks, preemption, prefixes found in the cache. In float32: in bfloat16 the last bit of a key, which depends on
    the products' shapes, may be a step of an 8-bit float."""
    want, llm = said(answers(fp8_engines(window, "wide"))), fp8_engines(window, name)
    for turn in range(3):
        outputs = answers(llm)
        compare(said(outputs), want)
        assert not turn or any(output.num_cached_tokens for output in outputs)
    if name == "tight":
        assert counter(llm, "num_preemptions") > 0
        runner(llm).requests.check_integrity()


@pytest.mark.parametrize("window", WINDOWS)
def test_a_longer_prompt_goes_on_from_a_cached_one(fp8_engines, window):
    """The blocks of the window in front of the place where prompts part are found again, too: vLLM keeps those of a
    place that two prompts have shared (--prefix-cache-retention-interval)."""
    llm = fp8_engines(window, "chunked")
    begin = "".join(reversed(TEXT)) * 2
    asked = [begin + "one thing", begin + "another, longer thing", begin + "a third"]
    want = said(answers(fp8_engines(window, "wide"), asked))
    for prompt, wanted in zip(asked, want, strict=True):
        (output,) = answers(llm, [prompt])
        compare(said([output]), [wanted])
    assert output.num_cached_tokens >= 192


def scores(llm, **changes):
    """Log-probability of every prompt token."""
    outputs = answers(llm, max_tokens=1, prompt_logprobs=0, **changes)
    made = []
    for output in outputs:
        ids = output.prompt_token_ids
        made += [at[t].logprob for t, at in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
    return torch.tensor(made)


def test_log_probabilities_are_near_those_of_full_width(fp8_engines, engines, model):
    plain = scores(start(model, **WHOLE))
    error = [(scores(fp8_engines(window, "whole")) - plain).abs() for window in WINDOWS]
    # keys and values are off by 2^-4 at most (2.5 % on average), and this model's softmax is sharp
    assert 0 < error[1].mean() < error[0].mean() < 0.3, [each.mean() for each in error]
    everything = scores(
        start(model, kv_cache_dtype="fp8_e4m3", **WHOLE | {"additional_config": {"kv_fp8_window": 512}})
    )
    assert (everything - plain).abs().max() < 0.05  # another operator, the same numbers


def test_attention_is_that_of_the_decoded_numbers(fp8_engines):
    """What a layer gives, against float64 on the decoded cache and, within the window, on what went into it."""
    for window in WINDOWS:
        llm = fp8_engines(window, "chunked")
        made = runner(llm)
        layer = next(iter(made.vllm_config.compilation_config.static_forward_context.values()))
        seen = []
        attend = layer.impl.fp8.attend

        def spy(own, query, cache, metadata, output, attend=attend, seen=seen):
            attend(own, query, cache, metadata, output)
            if metadata.kv_lens_device is None:
                seen.append((own, query.cpu(), cache, metadata, output.cpu()))
                check(*seen[-1])

        layer.impl.fp8.attend = spy
        try:
            answers(llm, [TEXT * 2, TEXT[20:] * 3], max_tokens=1)
        finally:
            del layer.impl.fp8.attend
        assert len(seen) >= 5


def check(layer, query, cache, metadata, output):
    window, first = layer.fp8.window, 0
    for b, (end, length) in enumerate(zip(metadata.cu_query_lens, metadata.kv_lens, strict=True)):
        old = [
            fp8_cache.decoded(
                pages(codes, metadata.block_table[b], length), pages(scales, metadata.block_table[b], length)
            )
            for codes, scales in ((cache.key, cache.key_exponents), (cache.value, cache.value_exponents))
        ]
        new = old
        if window:
            new = [pages(x, metadata.recent.block_table[b], length) for x in (cache.recent.key, cache.recent.value)]
        for row in range(end - first):
            at = length - (end - first) + row
            near = max(0, at + 1 - window) if window else at + 1
            key, value = (torch.cat((a[:near], c[near : at + 1])).double() for a, c in zip(old, new, strict=True))
            group = layer.num_heads // layer.num_kv_heads
            key, value = (x.repeat_interleave(group, 1) for x in (key, value))
            weights = torch.einsum("hd,lhd->hl", query[first + row].double(), key).mul(layer.scale).softmax(-1)
            want = torch.einsum("hl,lhd->hd", weights, value)
            torch.testing.assert_close(output[first + row].double(), want, rtol=1e-4, atol=1e-4)
        first = end


def pages(cache, table, length):
    size = cache.shape[1]
    return cache.cpu()[table[: -(-length // size)].cpu().long()].flatten(0, 1)[:length]


def test_the_same_bytes_hold_twice_the_tokens(model, engines):
    engines("whole")
    memory = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 8 << 20, "max_num_batched_tokens": 64}
    blocks = {}
    for window in (None, 0, 40):
        kind = {} if window is None else {"kv_cache_dtype": "fp8", "additional_config": {"kv_fp8_window": window}}
        llm = start(model, **memory, **kind)
        blocks[window] = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        stored = runner(llm).kv_caches.values()
        tensors = [tensor for cache in stored for tensor in cache.tensors()[: 4 if kind else 2]]
        assert sum(t.nbytes for t in tensors) <= 8 << 20
        assert {t.shape[0] for t in tensors} == {blocks[window]}
    assert blocks[0] == blocks[40] == int((8 << 20) / (2 * 2 * 16 * (2 * 64 + 1)))
    assert 1.98 < blocks[0] / blocks[None] < 2
