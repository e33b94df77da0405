"""Drawn tokens follow the probabilities, at the edges too, and depend on nothing but their row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aloft.ops import draw as draw_ops
from aloft.runner import sampling, seeds
from aloft.runner.draw import block_width, draw, numbers_for
from aloft.runner.random_stage import WORDS, RandomInputs, RandomStage


@pytest.mark.parametrize(("vocabulary", "width"), [(49152, 512), (151936, 128), (32000, 500), (1009, 1009), (5, 5)])
def test_blocks_divide_the_vocabulary(vocabulary, width):
    assert block_width(vocabulary) == width and vocabulary % width == 0


@pytest.mark.parametrize("vocabulary", [7, 64, 1009, 1024])
def test_frequencies_are_the_probabilities(vocabulary):
    """Chi-squared over the ten likeliest tokens and the rest."""
    torch.manual_seed(0)
    probs = torch.softmax(3 * torch.randn(vocabulary), -1)
    count = 20000
    drawn = torch.cat([draw(probs.expand(2000, -1).npu(), {}).cpu() for _ in range(count // 2000)])
    top = probs.topk(min(10, vocabulary - 1)).indices
    expected = torch.cat([probs[top], 1 - probs[top].sum(0, keepdim=True)]).double() * count
    seen = torch.tensor([*((drawn == token).sum().item() for token in top), 0.0], dtype=torch.float64)
    seen[-1] = count - seen.sum()
    assert ((seen - expected) ** 2 / expected).sum() < 30  # 10 degrees of freedom: once in 1,000


def test_every_number_finds_the_token_of_the_exact_sums(monkeypatch):
    """Against float64, up to the rounding of the sums; a token without probability is never drawn."""
    rng = np.random.default_rng(1)
    probs = rng.random((64, 1024)).astype(np.float32) ** 8
    probs[rng.random(probs.shape) < 0.9] = 0
    probs[:, rng.integers(0, 1024, 8)] += 1e-6
    probs[0] = 0
    probs[0, 700] = 1e-30  # all there is
    probs[1, 512:] = 0
    numbers = rng.random((64, 1)).astype(np.float32)
    numbers[:8], numbers[8:16] = 0, np.nextafter(np.float32(1), np.float32(0))
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self, **_: self.copy_(torch.from_numpy(numbers)))
    token = draw(torch.from_numpy(probs).npu(), {}).cpu().numpy()
    picked = probs[np.arange(64), token]
    assert np.all(picked > 0) and token[0] == 700
    running = np.cumsum(probs.astype(np.float64), axis=1)
    target = numbers[:, 0].astype(np.float64) * running[:, -1]
    slack = 1e-5 * running[:, -1]
    end = running[np.arange(64), token]
    assert np.all(end >= target - slack) and np.all(end - picked <= target + slack)


def test_a_row_with_a_generator_depends_on_it_alone():
    torch.manual_seed(0)
    probs = torch.softmax(torch.randn(5, 640), -1).npu()

    def seeded():
        return torch.Generator(device="npu").manual_seed(3)

    many = [draw(probs, {2: seeded()})[2].item() for _ in range(3)]
    alone = draw(probs[2:3], {0: seeded()}).item()
    assert many == [alone] * 3
    free = {tuple(draw(probs, {2: seeded()}).tolist()) for _ in range(5)}
    assert len(free) > 1


def test_a_row_gets_the_same_token_whichever_of_its_neighbours_sample():
    """With a generator or without: a prompt that goes on beside it uses up its number."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(5, 640)).npu()
    metadata = SimpleNamespace(
        temperature=torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0]).npu(),
        top_k=torch.tensor([640, 50, 640, 640, 90], dtype=torch.int32).npu(),
        top_p=None,
        generators={3: torch.Generator(device="npu")},
    )

    def drawn(seed, logits, rows=None):
        torch.manual_seed(seed)
        metadata.generators[3].manual_seed(seed)
        return sampling.random(logits, metadata, rows).sampled_token_ids[:, 0].tolist()

    for rows in ([0, 1, 2, 3, 4], [1, 4], [3], [0, 2, 3]):
        chosen = torch.tensor(rows, dtype=torch.int32).npu()
        for seed in range(4):
            every = drawn(seed, logits)
            assert drawn(seed, logits.index_select(0, chosen), chosen) == [every[row] for row in rows]
    assert len({tuple(drawn(seed, logits)) for seed in range(4)}) > 1


def test_the_numbers_of_a_closed_step_are_those_of_the_generators():
    """Seeded rows by seed and position, the others from the device's default generator, in one go for a step."""
    given = {0: 5, 2: -3, 4: 2**63 + 1}
    batch = SimpleNamespace(
        num_reqs=6,
        req_ids=list("abcdef"),
        temperature_cpu=np.linspace(0.5, 1, 8, dtype=np.float32),
        top_k_cpu=np.arange(8, dtype=np.int32),
        top_p_cpu=np.full(8, 0.5, dtype=np.float32),
        num_prompt_tokens=np.full(8, 3),
        num_tokens_no_spec=np.arange(3, 11),
        generators={row: torch.Generator(device="npu") for row in given},
    )
    size = 7
    words = torch.zeros(WORDS * size, dtype=torch.int32)
    stage = RandomStage(words.numpy(), size, draw_ops.Source(torch.device("npu:0")))
    inputs = RandomInputs.within(words, size)
    torch.manual_seed(11)
    made = []
    for step in range(3):
        if step:
            stage.advance()
        else:
            stage.fill(batch, {batch.req_ids[row]: seed for row, seed in given.items()})
        made.append(draw_ops.uniform(inputs.draws.npu()).cpu()[:6])
    torch.manual_seed(11)
    for step in range(3):
        for row, seed in given.items():
            seeds.reseed(batch.generators[row], seed, int(batch.num_tokens_no_spec[row]) - 3 + step)
        assert torch.equal(numbers_for(6, batch.generators, torch.device("npu")).cpu(), made[step]), step
    assert inputs.temperature.tolist() == [*batch.temperature_cpu[:6].tolist(), 0]
    assert inputs.top_k.tolist()[:6] == list(range(6)) and inputs.top_p.tolist()[:6] == [0.5] * 6


def test_what_comes_next_is_told_without_taking_it():
    """Whatever the seed."""
    source = draw_ops.Source(torch.device("npu:0"))
    for seed in (3, 2**63 - 1, 2**63, 2**64 - 1):
        torch.npu.manual_seed(seed)
        told = source.next()
        assert source.next() == told == source.take() != source.next(), seed
        torch.rand(1, device="npu")
        assert source.next() == source.take(), seed


def test_numbers_given_ahead_are_taken_when_the_step_is_asked_for():
    """Until then the generator is as if it had not begun; if others use it, the step gets what it has then."""
    size = 3
    words = torch.zeros(WORDS * size, dtype=torch.int32)
    stage = RandomStage(words.numpy(), size, draw_ops.Source(torch.device("npu:0")))
    stage.shared = size
    torch.npu.manual_seed(3)
    expected = []
    for _ in range(4):
        stage.advance()
        expected.append(stage.draws.copy())
    between = torch.rand(1, device="npu").item()
    stage.advance()
    expected.append(stage.draws.copy())

    torch.npu.manual_seed(3)
    stage.advance(ahead=True)  # given up
    for step in range(4):
        stage.advance(ahead=step != 2)
        assert stage.confirm() is None and np.array_equal(stage.draws, expected[step])
    stage.advance(ahead=True)
    assert torch.rand(1, device="npu").item() == between
    numbers = stage.confirm()
    assert numbers is not None and not np.array_equal(stage.draws, expected[4])
    stage.correct(numbers)
    assert np.array_equal(stage.draws, expected[4])
    stage.advance(ahead=True)
    torch.npu.manual_seed(9)
    numbers = stage.confirm()
    assert numbers is not None and numbers.seed == 9
