"""The tool's parts: grids, error feedback, rotations, packing, resuming, and scores."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy
import pytest
import torch

from aloft.cli.errors import UserError
from aloft.cli.quantize import quantize as command
from aloft.cli.quantize import share
from aloft.evaluation.compare import compare, divergence
from aloft.evaluation.scores import Scores, windows
from aloft.quantization.weight import kronecker_factors, pack_nibbles, unpack_int32, unpack_nibbles
from aloft.quantizer import Settings, grid, mixed, quantize
from aloft.quantizer.gptq import refine, round_with_feedback
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


def _plain_feedback(weight, second, of):
    """GPTQ column by column from the inverse itself, in float64."""
    damped = second.double() + torch.eye(len(second)) * 0.01 * float(second.diagonal().double().mean())
    order = torch.argsort(second.diagonal(), descending=True, stable=True).tolist()
    left, codes = weight.double().clone(), torch.zeros(weight.shape, dtype=torch.int8)
    scale, zero = (part.double() for part in of.columns(0, weight.shape[1]))
    for place, at in enumerate(order):
        rest = order[place:]
        inverse = torch.linalg.inv(damped[rest][:, rest])
        code = torch.round(left[:, at] / scale[:, at] + zero[:, at]).clamp(of.low, of.high)
        codes[:, at] = code
        error = (left[:, at] - (code - zero[:, at]) * scale[:, at]) / inverse[0, 0]
        left[:, rest] -= error[:, None] * inverse[0]
    return codes


def test_feedback_is_the_textbook_one():
    torch.manual_seed(1)
    inputs = torch.randn(500, 160) @ torch.randn(160, 160)
    weight, second = torch.randn(6, 160), inputs.t() @ inputs
    of = grid.fit(weight, 4, 32, False)
    got = round_with_feedback(weight, second, of)
    assert (got != _plain_feedback(weight, second, of)).float().mean() < 0.01  # float32 against float64: ties


@pytest.mark.parametrize("symmetric", [True, False])
def test_descent_lowers_the_error_further(symmetric):
    torch.manual_seed(0)
    inputs = torch.randn(3000, 96) @ torch.randn(96, 96)
    weight, second = torch.randn(16, 96), inputs.t() @ inputs
    of = grid.fit(weight, 4, 32, symmetric)
    codes = round_with_feedback(weight, second, of)
    errors = []
    for rounds in (0, 1, 4, 20):
        better, changed = refine(weight, second, of, codes, rounds, torch.float32)
        off = changed.value(better) - weight
        errors.append(float(((off @ second) * off).sum()))
        assert int(better.min()) >= changed.low and int(better.max()) <= changed.high
    assert errors[1] < 0.97 * errors[0] and errors[2] < errors[1] and errors[3] <= errors[2] * 1.001, errors
    damped = second + torch.eye(96) * 0.01 * float(second.diagonal().mean())
    step = changed.columns(0, 96)[0]
    # at the end no code alone can be bettered: a step changes the error by 2 s (H off) + s^2 H_kk
    for sign in (1, -1):
        gain = 2 * sign * step * (off @ damped) + step.square() * damped.diagonal()
        room = (better + sign >= changed.low) & (better + sign <= changed.high)
        assert (gain[room] > -1e-3 * float(gain.abs().max())).all()
    in_bfloat16 = refine(weight, second, of, codes, 2, torch.bfloat16)[1].scale
    assert torch.equal(in_bfloat16[in_bfloat16 != of.scale], in_bfloat16[in_bfloat16 != of.scale].bfloat16().float())


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
    for bad in (
        ("w5a5",),
        ("w8a16", 64),
        ("w4a16", 48),
        ("w4a8", None, False),
        ("w4a16", None, None, "best"),
        ("w4a16", None, None, "smoothquant"),
        ("w8a16", None, None, "awq"),
        ("w4a4", None, None, "awq"),
    ):
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


@pytest.mark.parametrize("done", [1, 2])
def test_run_killed_before_its_state_is_written(done, model, text, tmp_path, monkeypatch):
    """Also between a block's hidden states and the state that names them: the block's own inputs are taken again."""
    settings = Settings("w4a16", group=32, samples=4, length=32)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    quantize(model, whole, settings, text)
    replace = Path.replace

    def stop(file: Path, target: Path) -> Path:
        if file.name == "state.new" and json.loads(file.read_text())["done"] == done:
            raise KeyboardInterrupt
        return replace(file, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", stop)
        quantize(model, parts, settings, text)
    quantize(model, parts, settings, text)
    names = sorted(file.name for file in whole.iterdir())
    assert names == sorted(file.name for file in parts.iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_run_of_a_model_that_has_changed_since(file, model, tmp_path):
    """The same name, size and time, but another byte: the blocks done are another model's."""
    source, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(model, source)

    def stop(done: int, total: int, words: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, Settings("w8a16"), progress=stop)
    content, times = bytearray((source / file).read_bytes()), (source / file).stat()
    if file == "config.json":
        content = content.replace(b"1e-06", b"2e-06")
    else:
        content[-2] ^= 1
    (source / file).write_bytes(content)
    os.utime(source / file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (source / file).stat().st_size == times.st_size
    with pytest.raises(ValueError, match="unfinished run with another model"):
        quantize(source, out, Settings("w8a16"))


def test_an_unfinished_run_is_not_discarded_unasked(model, text, tmp_path):
    """Other settings are refused with what is there; --overwrite leaves nothing of it."""
    out, settings = tmp_path / "out", Settings("w4a16", group=32, samples=4, length=32)

    def stop(done: int, total: int, words: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(model, out, settings, text, stop)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    other = Settings("w8a16", format="compressed-tensors", seed=3)
    with pytest.raises(ValueError, match=r"unfinished run with --scheme w4a16 instead of w8a16.*1 block.*--overwrite"):
        quantize(model, out, other)
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    quantize(model, out, other, overwrite=True)
    quantize(model, tmp_path / "fresh", other)
    quantize(model, tmp_path / "modelslim", Settings("w8a16"))
    with pytest.raises(ValueError, match=r"finished checkpoint.*--overwrite"):
        quantize(model, tmp_path / "modelslim", other)
    quantize(model, tmp_path / "modelslim", other, overwrite=True)
    for made in (out, tmp_path / "modelslim"):
        assert _files(made) == _files(tmp_path / "fresh")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="not empty: name another folder"):
        quantize(model, tmp_path / "mine", other, overwrite=True)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    again = tmp_path / "again"
    quantize(model, again, Settings("float"))
    with pytest.raises(ValueError, match="quantized already"):
        quantize(again, again, other, overwrite=True)
    assert any(again.glob("*.safetensors"))


def _files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_progress_where_there_is_no_terminal(model, tmp_path, capfd):
    command(model, tmp_path / "made", Settings("w8a16"), None, report=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("block 0: 0 of 2 done after ") and lines[-1].startswith("writing: 2 of 2 done")
    with pytest.raises(UserError, match="w3a3"):
        command(model, tmp_path / "none", Settings("w3a3"), None, report=False)
    assert capfd.readouterr().err == ""


def test_refusals(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*file"):
        command(model, tmp_path / "file", Settings("w8a16"), None, report=False)
    quantize(model, tmp_path / "made", Settings("w8a16"))
    with pytest.raises(ValueError, match="quantized already"):
        quantize(tmp_path / "made", tmp_path / "again", Settings("w8a16"))


@pytest.mark.parametrize("form", ["modelslim", "compressed-tensors"])
def test_groups_that_do_not_fit_are_refused_before_anything_is_made(form, model, text, tmp_path):
    with pytest.raises(ValueError, match=r"groups of 128 .* 192 input features.*--group-size that does: 0, 32, 64$"):
        quantize(model, tmp_path / "out", Settings("w4a16", form, group=128), text)
    assert not (tmp_path / "out").exists()


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
    said = json.loads((tmp_path / "out" / "aloft-quantize.json").read_text())["plan"]
    assert said["mean_bits"] == pytest.approx(mean) and len(said["products"]) == 8
    for bad in (
        Settings("w4a16", target_bits=9.0),
        Settings("w8a16", target_bits=5.0),
        Settings("w4a16", target_bits=5.0, max_loss=0.1),
    ):
        with pytest.raises(ValueError, match="--target-bits"):
            quantize(model, tmp_path / "bad", bad, text)
    with pytest.raises(ValueError, match="--max-loss must be above 0"):
        quantize(model, tmp_path / "bad", Settings("w4a16", max_loss=1.5), text)


def test_largest_permitted_loss(model, text, tmp_path):
    """A smaller permitted loss widens more products; the divergence then really is smaller."""
    ratios, wide = [], []
    for number, loss in enumerate((0.5, 0.01, 0.0005)):
        settings = Settings("w4a16", group=32, max_loss=loss, samples=4, length=32)
        done = quantize(model, tmp_path / str(number), settings, text)
        assert done.plan is not None
        assert math.expm1(done.plan.predicted) <= loss or len(done.plan.wide) == 8
        assert all(row["why"].startswith(f"{row['scheme']}: ") for row in done.plan.reasons)
        ratios.append(done.weight_ratio)
        wide.append(done.plan.wide)
    assert ratios[0] < ratios[1] <= ratios[2] and wide[0] <= wide[1] <= wide[2], ratios


def test_plan_takes_what_costs_most_for_its_size():
    found = [
        mixed.Sensitivity(0, "qkv", 0.02, 0.0, 100),
        mixed.Sensitivity(0, "down", 0.03, 0.0001, 1000),
        mixed.Sensitivity(1, "o", 0.001, 0.0, 100),
    ]
    of = recipe("w4a16")
    assert mixed.plan(found, of, max_loss=0.04).wide == {(0, "qkv")}
    assert mixed.plan(found, of, max_loss=0.02).wide == {(0, "qkv"), (0, "down")}
    assert mixed.plan(found, of, max_loss=0.06).wide == set()
    assert mixed.plan(found, of, target_bits=4.7).wide == {(0, "qkv"), (1, "o")}  # down does not fit
    everything = mixed.plan(found, of, max_loss=1e-6)
    assert len(everything.wide) == 3 and everything.predicted == pytest.approx(0.0001)
    assert everything.mean_bits == 8
    assert everything.unmet.startswith("--max-loss 1e-06 is not reached: the predicted rise is 0.01%")
    assert mixed.plan(found, of, max_loss=0.04).unmet == mixed.plan(found, of, target_bits=4.7).unmet == ""
    assert mixed.plan(found, recipe("w4a4"), max_loss=1e-6).mean_bits == 4


def test_rotated_layers_that_cost_too_much_keep_wide_activations(model, text, tmp_path):
    done = quantize(model, tmp_path / "out", Settings("w4a4", max_loss=0.9, samples=4, length=32), text)
    assert done.plan is not None and len(done.plan.reasons) == 6
    assert all(row["divergence_wide"] < row["divergence"] for row in done.plan.reasons)
    schemes = {row["layer"].removeprefix("model.layers."): row["scheme"] for row in done.layers}
    for block in range(2):
        assert schemes[f"{block}.self_attn.q_proj"] == "w4a8"
        for name, stage in (("mlp.down_proj", "down"), ("self_attn.o_proj", "o"), ("mlp.up_proj", "gate_up")):
            assert (schemes[f"{block}.{name}"] == "w4a8") == ((block, stage) in done.plan.wide)
    with pytest.raises(ValueError, match="as many bits a weight"):
        quantize(model, tmp_path / "bad", Settings("w4a4", target_bits=5.0), text)


def test_adapted_groups():
    wanted = recipe("w4a8")
    assert [wanted.fitted(size).group for size in (576, 1536, 64, 48)] == [96, 128, 64, 0]
    assert recipe("w4a8", 64).fitted(576).group == 64
    assert wanted.shared({576, 1536}).group == 96
    query = recipe("w4a4").shared({576, 1536}).of("self_attn.q_proj")
    assert query is not None and (query.scheme, query.group, query.fitted(576).group) == ("w4a8", 96, 96)


def test_share():
    assert share("1%") == share("0.01") == 0.01
    with pytest.raises(UserError, match="--max-loss"):
        share("little")


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
