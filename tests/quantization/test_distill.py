"""Distillation: gradients, what a step does, resuming, and that the whole model gets nearer to the float one."""

from __future__ import annotations

import json

import pytest
import torch

from aloft.quantizer import Settings, grid, quantize
from aloft.quantizer.block import Quantized
from aloft.quantizer.distill import GainPupil, Lesson, ScalePupil, divergence
from aloft.quantizer.held import HeldBlock
from aloft.quantizer.recipe import recipe


def test_divergence_and_its_gradient():
    torch.manual_seed(0)
    head = torch.randn(40, 8, dtype=torch.float64)
    hidden, wanted = torch.randn(6, 8, dtype=torch.float64, requires_grad=True), torch.randn(6, 8, dtype=torch.float64)
    lost, gradient = divergence(hidden.detach(), wanted, head)
    p, q = (torch.log_softmax(x @ head.t(), -1) for x in (wanted, hidden))
    want = torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum")
    want.backward()
    assert abs(lost - float(want.detach())) < 1e-4 and torch.allclose(gradient, hidden.grad, atol=1e-5)
    assert divergence(wanted, wanted, head)[0] == 0


def _pupil(weight, group=16):
    fitted = grid.fit(weight, 4, group, symmetric=False)
    entry = Quantized(fitted.round(weight), fitted, recipe("w4a16", 32), 0.0)
    return ScalePupil(torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False), entry, torch.float32)


def test_scales_follow_the_gradient():
    torch.manual_seed(0)
    pupil = _pupil(torch.randn(4, 32))
    codes = pupil.entry.codes.clone()
    start = pupil.entry.grid.value(codes)
    assert torch.allclose(pupil.module.weight.data.float(), start, rtol=2.0**-8)
    target = start.clone()
    target[0, :16] *= 1.2  # one group's scale is a fifth too small
    for step in range(1, 200):
        pupil.module.weight.grad = pupil.module.weight.data - target.to(torch.bfloat16)
        pupil.step(step, 0.01)
    ratio = pupil.scale / pupil.entry.grid.scale
    assert abs(float(ratio[0, 0]) - 1.2) < 0.02
    ratio[0, 0] = 1
    assert ((ratio - 1).abs() < 0.01).all()
    pupil.finish()
    assert torch.equal(pupil.entry.codes, codes)
    assert torch.allclose(pupil.entry.grid.value(codes), target, rtol=0.02, atol=1e-3)


def test_gains_follow_the_gradient():
    held = torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16)
    norm = torch.nn.RMSNorm(3, dtype=torch.bfloat16)
    norm.weight.data.copy_(held)
    pupil = GainPupil(norm, held)
    for step in range(1, 100):
        norm.weight.grad = norm.weight.data - torch.tensor([1.0, -2.4, 0.5], dtype=torch.bfloat16)
        pupil.step(step, 0.01)
    pupil.finish()
    assert abs(float(held[1]) + 2.4) < 0.05 and held[0] == 1 and held[2] == 0.5


def test_held_block_survives_a_file(tmp_path):
    torch.manual_seed(0)
    entry = _pupil(torch.randn(4, 32)).entry
    entry.left, entry.clip = torch.eye(4), 0.9
    HeldBlock({"mlp.up_proj": entry}, {"norm": torch.ones(3)}, {"x.kv": torch.zeros(2)}).save(tmp_path / "b")
    held = HeldBlock.load(tmp_path / "b")
    got = held.layers["mlp.up_proj"]
    assert got.recipe == entry.recipe and got.clip == 0.9 and got.right is None and torch.equal(got.left, entry.left)
    assert torch.equal(got.grid.value(got.codes), entry.grid.value(entry.codes))
    assert held.parameters["norm"].tolist() == [1, 1, 1] and "x.kv" in held.extra


def test_pace():
    lesson = Lesson(10, rate=1.0, warm=2)
    assert [lesson.pace(step) for step in (1, 2, 10)] == [0.5, 0.9, pytest.approx(0.1)]


@pytest.mark.parametrize("scheme", ["w4a16", "w4a4"])
def test_tuning_lowers_the_divergence(scheme, model, text, tmp_path):
    said: list[float] = []

    def note(done: int, total: int, words: str) -> None:
        if words.startswith("distillation"):
            said.append(float(words.rpartition(" ")[2]))

    settings = Settings(scheme, group=32 if scheme == "w4a16" else None, samples=8, length=32, tune=30, tune_samples=8)
    quantize(model, tmp_path / "out", settings, text, note)
    assert len(said) == 30 and sum(said[-5:]) < 0.8 * sum(said[:5]), said
    assert not (tmp_path / "out" / ".aloft-quantize").exists()
    layers = json.loads((tmp_path / "out" / "aloft-quantize.json").read_text())["layers"]
    assert len(layers) == 2 * 7


def test_interrupted_tuning_goes_on(model, text, tmp_path):
    settings = Settings("w4a16", group=32, samples=4, length=32, tune=14, tune_samples=4)
    quantize(model, tmp_path / "whole", settings, text)

    def stop(done: int, total: int, words: str) -> None:
        if words.startswith("distillation") and done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(model, tmp_path / "parts", settings, text, stop)
    seen: list[int] = []

    def note(done: int, total: int, words: str) -> None:
        if words.startswith("distillation"):
            seen.append(done)

    quantize(model, tmp_path / "parts", settings, text, note)
    assert seen == [11, 12, 13, 14]
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "parts" / file.name).read_bytes(), file.name


def test_tuning_needs_a_four_bit_scheme(model, text, tmp_path):
    with pytest.raises(ValueError, match="--tune goes with 4-bit"):
        quantize(model, tmp_path / "out", Settings("w8a16", tune=3), text)
