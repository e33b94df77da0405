"""Drawn tokens follow the probabilities, at the edges too, and depend on nothing but their row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aloft.runner.draw import block_width, draw


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
