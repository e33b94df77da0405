"""Checkpoints of every format and scheme in an engine: each layer against its weight in float64."""

from __future__ import annotations

import checkpoints
import pytest
import torch

SHARDS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
WRITTEN = [  # scheme, format, changes, error allowed beside that of rounding activations
    ("w8a16", "modelslim", {}),
    ("w8a16", "compressed-tensors", {}),
    ("w8a8-dynamic", "modelslim", {}),
    ("w8a8-dynamic", "compressed-tensors", {}),
    ("w8a8-static", "modelslim", {}),
    ("w8a8-static", "compressed-tensors", {}),
    ("w4a16", "modelslim", {"group": 32}),
    ("w4a16", "modelslim", {"group": 0, "symmetric": True}),
    ("w4a16", "compressed-tensors", {"group": 64}),
    ("w4a8", "modelslim", {"group": 64}),
    ("w4a8", "modelslim", {"group": 0}),
    ("w4a8", "compressed-tensors", {"group": 32}),
    ("w4a8", "compressed-tensors", {}),  # groups of 128 and 96, as the inputs allow
]
SHORT = [
    ("w4a4", {"tune": 4, "tune_samples": 8}),
    ("float", {"kv": "int8"}),
    ("w8a16", {"algorithm": "gptq"}),
    ("w8a8-static", {}),
    ("w8a8-static", {"algorithm": "smoothquant"}),
    ("w4a16", {"group": 32, "target_bits": 5.0}),
]
GROUPED = [("awq", 32, False, False), ("gptq", 32, True, False), ("gptq", 64, False, True)]


def check_layers(folder, values, activations):
    """Every quantized layer's product against float64, and the engine makes text."""
    import inprocess

    llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)
    (answer,) = llm.generate(["The square of"], use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16
    seen = 0
    torch.manual_seed(1)
    for name, module in inprocess.runner(llm).model.named_modules():
        parent, _, last = name.rpartition(".")
        parts = [f"{parent}.{shard}" for shard in SHARDS.get(last, (last,))]
        if parts[0] not in values:
            continue
        weight = torch.cat([values.pop(part) for part in parts])
        for rows in (1, 5, 70):
            x = torch.randn(rows, weight.shape[1]).to(torch.bfloat16)
            got, _ = module(x.npu())
            compare(x, weight, got.cpu(), activations)
        module.quant_method.process_weights_after_loading(module)  # a reload passes here again
        again, _ = module(x.npu())
        assert torch.equal(again.cpu(), got.cpu())
        seen += 1
    assert seen >= 8 and not values


def compare(x, weight, got, activations):
    if activations == "static":  # the range was calibrated on other inputs
        return
    wide, each = x.double(), 2.0**-8  # scales and dequantized weights are bfloat16 inside the weight-only products
    if activations == "token":
        codes, scale = torch.ops.npu.npu_dynamic_quant(x.npu())
        wide, each = codes.cpu().double() * scale.cpu().double()[:, None], 2.0**-20
    want = wide @ weight.t()
    allowed = 2.0**-8 * want.abs() + each * (wide.abs() @ weight.abs().t()) + 1e-6
    assert ((got.double() - want).abs() <= allowed).all(), float(((got.double() - want).abs() - allowed).max())


@pytest.mark.parametrize(("scheme", "form", "changes"), WRITTEN)
def test_written(scheme, form, changes, model, text, tmp_path):
    from aloft.quantizer import Settings, quantize

    folder = tmp_path / "out"
    settings = Settings(scheme, form, "minmax", samples=8, length=64, **changes)
    quantize(model, folder, settings, text)
    values = checkpoints.modelslim(folder) if form == "modelslim" else checkpoints.compressed(folder)
    check_layers(folder, values, {"w8a8-static": "static", "w8a16": "", "w4a16": ""}.get(scheme, "token"))


@pytest.mark.parametrize(("method", "group", "symmetric", "ordered"), GROUPED)
def test_grouped(method, group, symmetric, ordered, model, tmp_path):
    folder = tmp_path / "out"
    check_layers(folder, checkpoints.grouped(model, folder, method, group, symmetric, ordered), "")


def test_a_cache_is_quantized_in_one_way(model, text, tmp_path):
    import inprocess

    from aloft.quantizer import Settings, quantize

    quantize(model, tmp_path / "out", Settings("float", samples=4, length=64, kv="int8"), text)
    with pytest.raises(ValueError, match=r"int8: --kv-cache-dtype must be auto, not fp8\.$"):
        inprocess.start(tmp_path / "out", kv_cache_dtype="fp8")


@pytest.mark.parametrize(("scheme", "changes"), SHORT)
def test_algorithms(scheme, changes, model, text, tmp_path):
    """The scheme's own algorithms: the engine's text scores stay near those of the float model."""
    import inprocess
    import tiny

    from aloft.evaluation.compare import compare
    from aloft.evaluation.scores import score
    from aloft.quantizer import Settings, quantize

    quantize(model, tmp_path / "out", Settings(scheme, samples=8, length=64, **changes), text)
    pieces = [list(text.read_bytes()[start : start + 64]) for start in (4000, 5000)]
    found = []
    for folder in (model, tmp_path / "out"):
        llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80, enable_prefix_caching=False)
        found.append(score(llm, pieces, 5))
        assert (found[-1].ids < tiny.EOS).any()
        (answer,) = llm.generate(["The square of"], use_tqdm=False)  # decode steps, captured or not
        assert len(answer.outputs[0].token_ids) == 16
    compared = compare(found[1], found[0])
    limit = {"w4a4": 0.5, "float": 0.2, "w8a8-static": 0.05, "w4a16": 0.2, "w8a16": 0.01}[scheme]
    assert 0 < compared.kl.value < limit, compared
