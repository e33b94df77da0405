"""Seeds, grammars and log-probabilities, each against an independent computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from aloft.runner import grammar, logprobs, seeds


def test_mixed_seeds_differ_and_fit():
    values = {seeds.mix(seed, position) for seed in range(-20, 20) for position in range(50)}
    assert seeds.mix_all(np.array([2**64 - 20, 7], dtype=np.uint64), np.array([3, 49], dtype=np.uint64)).tolist() == [
        seeds.mix(-20, 3),
        seeds.mix(7, 49),
    ]
    assert len(values) == 2000 and all(0 <= value < 1 << 63 for value in values)


def test_reseeding_depends_on_seed_and_position_only():
    generator = torch.Generator()
    draws = []
    for position in (3, 4, 3):
        seeds.reseed(generator, 7, position)
        draws.append(torch.rand(4, generator=generator))
    assert torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("vocab", [5, 32, 33, 100])
def test_grammar_hides_exactly_what_is_not_allowed(vocab):
    rng = np.random.default_rng(0)
    allowed = rng.random((3, vocab)) < 0.3
    words = np.zeros((3, -(-vocab // 32)), dtype=np.uint32)
    for row, token in zip(*np.nonzero(allowed), strict=True):
        words[row, token // 32] |= np.uint32(1 << (token % 32))
    logits = torch.randn(4, vocab)
    before = logits.clone()
    output = GrammarOutput(["c", "a", "gone"], words.view(np.int32))
    grammar.apply(output, {"a": 0, "b": 1, "c": 2, "d": 3}, logits)
    assert torch.equal(logits[[1, 3]], before[[1, 3]])
    for row, source in ((2, 0), (0, 1)):
        hidden = torch.isneginf(logits[row]).numpy()
        assert np.array_equal(hidden, ~allowed[source])
        assert torch.equal(logits[row][~hidden], before[row][~hidden])


def test_logprobs_of_the_token_and_the_best():
    scores = torch.randn(5, 50).log_softmax(-1)
    chosen = torch.randint(0, 50, (5,))
    found = logprobs.gather(scores, 3, chosen)
    order = scores.argsort(-1, descending=True)
    for row in range(5):
        assert found.logprob_token_ids[row].tolist() == [int(chosen[row]), *order[row, :3].tolist()]
        assert found.selected_token_ranks[row] == order[row].tolist().index(int(chosen[row])) + 1
    assert torch.equal(found.logprobs, scores.gather(1, found.logprob_token_ids.long()))


def test_logprobs_of_wanted_tokens():
    scores = torch.randn(3, 20).log_softmax(-1)
    found = logprobs.gather_specific(scores, {0: [4, 5], 2: [6]}, torch.tensor([1, 2, 3]))
    assert found.logprob_token_ids[0].tolist() == [1, 4, 5]
    assert torch.isneginf(found.logprobs[1, 1:]).all() and torch.isneginf(found.logprobs[2, 2])
    assert found.logprobs[2, 1] == scores[2, 6]


@pytest.mark.parametrize("chunks", [(9,), (4, 5), (1, 7, 1), (8, 1), (3, 3, 3), (9, 1)])
def test_prompt_logprobs_do_not_depend_on_the_chunks(chunks):
    torch.manual_seed(0)
    vocab, prompt = 30, [3, 1, 4, 1, 5, 9, 2, 6, 5]
    table = torch.randn(len(prompt), vocab)
    collector = logprobs.PromptLogprobs(vocab, "raw_logprobs", lambda hidden: hidden)
    request = CachedRequestState(
        req_id="r",
        prompt_token_ids=prompt,
        mm_features=[],
        sampling_params=SamplingParams(prompt_logprobs=2),
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=[],
    )
    collector.add(request)
    computed, result = 0, {}
    for size in chunks:
        size = min(size, len(prompt) - computed)
        if not size:
            assert not collector.wanted
            break
        hidden = torch.cat((torch.full((2, vocab), 9.0), table[computed : computed + size]))
        assert not result
        result = collector.collect(hidden, {"r": request}, lambda _, c=computed, s=size: (2, c, s))
        computed += size
    tensors = result["r"]
    want = table.log_softmax(-1)
    assert tensors.logprobs.shape == (8, 3)
    assert torch.allclose(tensors.logprobs[:, 0], want[range(8), prompt[1:]])
    assert not collector.wanted and request.in_progress_prompt_logprobs_cpu is None
