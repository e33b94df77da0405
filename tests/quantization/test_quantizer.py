"""The tool's parts: grids, error feedback, rotations, packing, resuming, and scores."""

from __future__ import annotations

import json

import numpy
import pytest
import torch

from aloft.evaluation.compare import compare, divergence
from aloft.evaluation.scores import Scores, windows
from aloft.quantization.weight import kronecker_factors, pack_nibbles, unpack_int32, unpack_nibbles
from aloft.quantizer import Settings, grid, quantize
from aloft.quantizer.gptq import round_with_feedback
from aloft.quantizer.recipe import recipe
from aloft.quantizer.rotation import hadamard, orthogonal


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [0, 32])
def test_grid(bits, symmetric, group):
    torch.manual_seed(0)
    weight = torch.randn(7, 96)
    weight[2] = 0
    plain = grid.fit(weight, bits, group, symmetric, search=False)
    codes = plain.round(weight)
    assert int(codes.min()) >= (-127 if symmetric and bits == 8 else -(2 ** (bits - 1)))
    step = plain.columns(0, 96)[0]
    assert ((plain.value(codes) - weight).abs() <= step * 0.51 + 1e-6).all()
    assert (plain.value(codes)[2] == 0).all()
    searched = grid.fit(weight, bits, group, symmetric)
    error = [float((of.value(of.round(weight)) - weight).square().sum()) for of in (plain, searched)]
    assert error[1] <= error[0]
    with pytest.raises(ValueError, match="groups of 36"):
        grid.fit(weight, bits, 36)


def test_feedback_lowers_the_output_error():
    torch.manual_seed(0)
    mix = torch.randn(96, 96)
    inputs = torch.randn(2000, 96) @ mix
    weight, second = torch.randn(16, 96), inputs.t() @ inputs
    of = grid.fit(weight, 4, 32, False)
    nearest, fed = of.value(of.round(weight)), of.value(round_with_feedback(weight, second, of))
    errors = [float((inputs @ (value - weight).t()).square().mean()) for value in (nearest, fed)]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 24, 64, 576, 1536])
def test_hadamard(order):
    made = hadamard(order)
    assert made is not None and torch.equal(made @ made.t(), order * torch.eye(order, dtype=torch.float64))


@pytest.mark.parametrize("order", [7, 28, 48])
def test_rotations(order):
    made = orthogonal(order, 3)
    assert torch.allclose(made @ made.t(), torch.eye(order, dtype=torch.float64))
    assert torch.equal(made, orthogonal(order, 3)) and not torch.equal(made, orthogonal(order, 4))


def test_packing():
    torch.manual_seed(0)
    codes = torch.randint(-8, 8, (6, 16), dtype=torch.int8)
    for dim in (0, 1):
        assert torch.equal(unpack_nibbles(pack_nibbles(codes, dim), dim), codes)
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    assert torch.equal(unpack_int32(pack_to_int32(codes, 4), 4, 1) - 8, codes)
    assert torch.equal(unpack_int32(pack_to_int32(codes[:, :8], 8), 8, 1) - 128, codes[:, :8].short())
    assert kronecker_factors(576) == (24, 24) and kronecker_factors(1536) == (32, 48)
    with pytest.raises(ValueError, match="5"):
        kronecker_factors(5)


def test_recipes():
    assert recipe("W8A8_dynamic").scheme == "w8a8-dynamic" and recipe("w4a16", 32, True).group == 32
    for bad in (("w5a5",), ("w8a16", 64), ("w4a16", 48), ("w4a8", None, False), ("w4a16", None, None, "best")):
        with pytest.raises(ValueError, match="--"):
            recipe(*bad)


def test_interrupted_run_goes_on(model, text, tmp_path):
    settings = Settings("w4a16", group=32, samples=4, length=32)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    quantize(model, whole, settings, text)

    def stop(done: int, total: int, words: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(model, parts, settings, text, stop)
    seen: list[int] = []
    quantize(model, parts, settings, text, lambda done, total, words: seen.append(done))
    assert seen[0] == 1
    names = sorted(file.name for file in whole.iterdir())
    assert names == sorted(file.name for file in parts.iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    assert 0 < json.loads((whole / "aloft-quantize.json").read_text())["weight_ratio"] < 0.4
    with pytest.raises(ValueError, match="not empty"):
        quantize(model, whole, settings, text)


def test_mixed_precision(model, text, tmp_path):
    """The layers with the largest errors get 8 bits, within the budget; the description says which."""
    settings = Settings("w4a16", group=32, target_bits=5.0, samples=4, length=32)
    done = quantize(model, tmp_path / "out", settings, text)
    bits = {row["layer"]: {"w4a16": 4, "w8a16": 8}[row["scheme"]] for row in done.layers}
    weights = {row["layer"]: row["bytes_bfloat16"] for row in done.layers}
    mean = sum(bits[name] * weights[name] for name in bits) / sum(weights.values())
    assert 4 < mean <= 5 and set(bits.values()) == {4, 8}
    said = json.loads((tmp_path / "out" / "quant_model_description.json").read_text())
    assert {name: said[f"{name}.weight"] for name in bits} == {name: f"W{width}A16" for name, width in bits.items()}
    for block in range(2):
        prefix = f"model.layers.{block}.self_attn."
        assert len({bits[f"{prefix}{part}_proj"] for part in "qkv"}) == 1  # one product in the engine
    for bad in (Settings("w4a16", target_bits=9.0), Settings("w8a16", target_bits=5.0)):
        with pytest.raises(ValueError, match="--target-bits"):
            quantize(model, tmp_path / "bad", bad, text)


def _scores(logits, tokens):
    logs = torch.log_softmax(logits.double(), -1)
    best, ids = logs.topk(5)
    rows = numpy.zeros(len(tokens), dtype=numpy.int32)
    rows[len(tokens) // 2 :] = 1
    loss = -logs.gather(1, tokens[:, None])[:, 0].numpy()
    return Scores(loss, (ids[:, 0] == tokens).numpy(), rows, ids.int().numpy(), best.float().numpy())


def test_comparison():
    torch.manual_seed(0)
    logits, tokens = torch.randn(400, 12) * 2, torch.randint(0, 12, (400,))
    base = _scores(logits, tokens)
    same = compare(base, base)
    assert same.accuracy_kept.value == 1 and same.perplexity_rise.value == 0 and abs(same.kl.value) < 1e-6
    other = _scores(logits + torch.randn(400, 12) * 0.5, tokens)
    found = divergence(other, base)
    assert (found > -1e-6).all() and found.mean() > 0.01
    with pytest.raises(ValueError, match="other windows"):
        compare(other, Scores(**{**vars(base), "window": base.window + 1}))


def test_windows():
    assert windows(list(range(10)), 4, 0) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(windows(list(range(10)), 4, 3)) == 1
    with pytest.raises(ValueError, match="--window"):
        windows([1, 2], 4, 0)
