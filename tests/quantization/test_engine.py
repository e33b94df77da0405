"""Checkpoints of every format and scheme in an engine: each layer against its weight in float64."""

from __future__ import annotations

import json

import checkpoints
import pytest
import torch
from safetensors.torch import load_file, save_file

from aloft.quantization.weight import unpack_int32

SHARDS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
WRITTEN = [  # scheme, format, changes, error allowed beside that of rounding activations
    ("w8a16", "modelslim", {}),
    ("w8a16", "compressed-tensors", {}),
    ("w8a8-dynamic", "modelslim", {}),
    ("w8a8-dynamic", "compressed-tensors", {}),
    ("w8a8-static", "modelslim", {}),
    ("w8a8-static", "compressed-tensors", {}),
    ("w8a8-static", "modelslim", {"symmetric": True}),
    ("w8a8-static", "compressed-tensors", {"symmetric": True}),
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
    ("w4a16", {"group": 32, "algorithm": "awq"}),
]
GROUPED = [  # method, group, symmetric, in activation order, more
    ("awq", 32, False, False, {}),
    ("awq", 64, True, False, {}),
    ("gptq", 32, True, False, {}),
    ("gptq", 64, False, True, {}),
    ("gptq", 64, False, False, {"form": "gptq_v2"}),
    ("gptq", 32, True, True, {"bits": 8}),
    ("gptq", 64, False, False, {"bits": 8}),
    ("gptq", 0, True, False, {"bits": 8}),
    ("gptq", 0, False, False, {}),
]


def check_layers(folder, values, activations):
    """Every quantized layer's product against float64, and the engine makes text."""
    import inprocess

    llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)
    (answer,) = llm.generate(["The square of"], use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16
    seen, ranges = 0, input_ranges(folder) if activations == "static" else {}
    torch.manual_seed(1)
    for name, module in inprocess.runner(llm).model.named_modules():
        parent, dot, last = name.rpartition(".")
        parts = [f"{parent}{dot}{shard}" for shard in SHARDS.get(last, (last,))]
        if parts[0] not in values:
            continue
        weight = torch.cat([values.pop(part) for part in parts])
        inputs = ranges.get(parts[0])
        assert all(ranges.get(part) == inputs for part in parts)  # calibrated on the same inputs
        for rows in (1, 5, 70):
            x = torch.randn(rows, weight.shape[1]).to(torch.bfloat16)
            got = product(module, x)
            compare(x, weight, got.cpu()[:, : len(weight)], activations, inputs)
        module.quant_method.process_weights_after_loading(module)  # a reload passes here again
        again = product(module, x)
        assert torch.equal(again.cpu(), got.cpu())
        seen += 1
    assert seen >= 8 and not values


def product(module, x):
    if hasattr(module, "org_vocab_size"):  # a head is not called
        return module.quant_method.apply(module, x.npu())
    return module(x.npu())[0]


def input_ranges(folder):
    """Layer -> scale and offset of its static activations."""
    stored = checkpoints.tensors(folder)
    made = {}
    for name, scale in stored.items():
        layer, _, part = name.rpartition(".")
        if part == "input_scale":
            zero = [stored[key] for key in (f"{layer}.input_offset", f"{layer}.input_zero_point") if key in stored]
            made[layer] = float(scale), float(zero[0]) if zero else 0.0
    assert made
    return made


def compare(x, weight, got, activations, inputs=None):
    wide, each = x.double(), 2.0**-8  # scales and dequantized weights are bfloat16 inside the weight-only products
    if activations == "static":
        scale, offset = inputs
        # the operator takes the reciprocal, in the dtype of x: a code may be one off, which is no error of the product
        args = torch.tensor([1 / scale]).bfloat16().npu(), torch.tensor([offset]).bfloat16().npu()
        codes = torch.ops.npu.npu_quantize(x.npu(), *args, torch.qint8, -1, False).cpu().double()
        assert (codes - (wide / scale + offset).round().clamp(-128, 127)).abs().max() <= 1
        wide, each = (codes - offset) * scale, 2.0**-20
    elif activations == "token":
        codes, scale = torch.ops.npu.npu_dynamic_quant(x.npu())
        wide, each = codes.cpu().double() * scale.cpu().double()[:, None], 2.0**-20
    elif activations == "asymmetric":
        codes, scale, offset = (part.cpu().double() for part in torch.ops.npu.npu_dynamic_quant_asymmetric(x.npu()))
        wide, each = (codes - offset[:, None]) * scale[:, None], 2.0**-20
        assert ((wide - x.double()).abs() <= 0.51 * scale[:, None]).all()
    elif activations == "token4":
        codes, scale = torch.ops.npu.npu_dynamic_quant(x.npu(), dst_type=torch.quint4x2)
        codes = unpack_int32(codes.cpu(), 4, 1)
        wide, each = (codes - 16 * (codes > 7)).double() * scale.cpu().double()[:, None], 2.0**-20
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


@pytest.mark.parametrize(("method", "group", "symmetric", "ordered", "more"), GROUPED)
def test_grouped(method, group, symmetric, ordered, more, model, tmp_path):
    folder = tmp_path / "out"
    check_layers(folder, checkpoints.grouped(model, folder, method, group, symmetric, ordered, **more), "")


@pytest.mark.parametrize(("bits", "act", "group"), [(8, 0, 32), (4, 4, 0)])
def test_codes_in_bytes(bits, act, group, model, tmp_path):
    """compressed-tensors' int-quantized form, in the widths ``aloft quantize`` does not write it in."""
    values = checkpoints.int_quantized(model, tmp_path / "out", bits, act, group)
    check_layers(tmp_path / "out", values, "token4" if act else "")


@pytest.mark.parametrize(
    ("scheme", "kind", "activations"),
    [("w8a8-static", "W8A8_MIX", "token"), ("w8a8-dynamic", "W8A8_MIX", "token"), ("w4a4", "W4A4_DYNAMIC", "token4")],
)
def test_kinds_the_tool_does_not_write(scheme, kind, activations, model, text, tmp_path):
    """W8A8_MIX has the tensors of static activations too, W4A4_DYNAMIC no rotation."""
    from aloft.quantizer import Settings, quantize

    folder = tmp_path / "out"
    form = Settings("w8a8-dynamic" if scheme == "w4a4" else scheme, algorithm="minmax", samples=4, length=64)
    quantize(model, folder, form, text)
    said = folder / "quant_model_description.json"
    kinds = {"W8A8", "W8A8_DYNAMIC"}
    described = {key: kind if value in kinds else value for key, value in json.loads(said.read_text()).items()}
    said.write_text(json.dumps(described))
    if scheme == "w4a4":
        for file in folder.glob("model-block-*.safetensors"):
            held = load_file(file)
            for name in [name for name in held if held[name].dtype == torch.int8]:
                held[name] = (held[name].float() / 16).round().clamp(-8, 7).to(torch.int8)
            save_file(held, file, {"format": "pt"})
    check_layers(folder, checkpoints.modelslim(folder), activations)


@pytest.mark.parametrize(
    ("kind", "group", "activations", "more"),
    [
        ("W8A16", 64, "", {"offsets": True}),
        ("W8A16", 32, "", {"by_row": ("k_proj", "down_proj")}),
        ("W8A8_DYNAMIC", 64, "token", {}),
        ("W8A8_DYNAMIC", 32, "token", {"by_row": ("up_proj", "o_proj")}),
        ("W4A4_DYNAMIC", 32, "token4", {"offsets": True}),
    ],
)
def test_codes_in_bytes_with_groups(kind, group, activations, more, model, tmp_path):
    """ModelSlim names one group size for all layers, beside which some may have a scale a row."""
    check_layers(
        tmp_path / "out", checkpoints.modelslim_groups(model, tmp_path / "out", kind, group, **more), activations
    )


def test_a_cache_with_a_scale_a_head(model, text, tmp_path):
    """C8 with one scale and offset for all channels of a head, as some checkpoints have it."""
    import inprocess

    from aloft.evaluation.compare import compare as compared
    from aloft.evaluation.scores import score
    from aloft.quantizer import Settings, quantize

    quantize(model, tmp_path / "out", Settings("float", samples=4, length=64, kv="int8"), text)
    changed = 0
    for file in (tmp_path / "out").glob("model-block-*.safetensors"):
        held = load_file(file)
        for name in [name for name in held if name.endswith("kv_cache_scale")]:
            held[name] = held[name].view(2, 64).amax(1)
            held[name.replace("scale", "offset")] = torch.tensor([3.0, -2.0])
            changed += 1
        save_file(held, file, {"format": "pt"})
    assert changed == 4
    pieces = [list(text.read_bytes()[start : start + 64]) for start in (4000, 5000)]
    found = []
    for folder in (model, tmp_path / "out"):
        llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80, enable_prefix_caching=False)
        found.append(score(llm, pieces, 5))
    assert 0 < compared(found[1], found[0]).kl.value < 0.2


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
