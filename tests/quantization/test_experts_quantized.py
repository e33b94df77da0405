"""Quantized experts of every format and scheme in an engine: each layer against its weights in float64."""

from __future__ import annotations

import json

import checkpoints
import pytest
import torch
from safetensors.torch import save_file

CASES = [  # writer, its arguments, how activations are rounded
    ("compressed", (8, 8, 0), "token"),
    ("compressed", (8, 0, 0), ""),
    ("compressed", (4, 0, 32), ""),
    ("compressed", (4, 8, 32), "token"),
    ("compressed", (4, 8, 0), "token"),
    ("gptq", (32, True), ""),
    ("awq", (32, False), ""),
]


def rounded(x):
    """float64 rows as int8 with a scale a row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def expected(layer, values, x, weights, ids, activations):
    """float64 routed output, activations rounded where the scheme does; and what the lengths of its parts add up to."""
    made, lengths = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(len(x), dtype=torch.float64)
    wide = x.double()
    if activations:  # by the operator: a tie may fall either way
        codes, scale = (part.cpu().double() for part in torch.ops.npu.npu_dynamic_quant(x.npu()))
        wide = codes * scale[:, None]
    for t in range(len(x)):
        for weight, expert in zip(weights[t].double(), ids[t].tolist(), strict=True):
            names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
            gate, up, down = (values[f"{layer.layer_name}.{expert}.{name}"] for name in names)
            inner = torch.nn.functional.silu(wide[t] @ gate.t()) * (wide[t] @ up.t())
            inner = rounded(inner) if activations else inner
            part = weight * (inner @ down.t())
            made[t] += part
            lengths[t] += part.norm()
    return made, lengths


def check_experts(folder, values, activations):
    """The engine makes text, and every layer of experts is its formula; a pass after loading changes nothing."""
    import inprocess

    from aloft.ops.experts import choose

    llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)
    (answer,) = llm.generate(["The square of"], use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16
    assert not inprocess.runner(llm).graphs.refused
    layers = [module for module in inprocess.runner(llm).model.modules() if type(module).__name__ == "RoutedExperts"]
    assert len(layers) == 2
    torch.manual_seed(1)
    for layer in layers:
        for rows in (1, 5, 70):
            x = torch.randn(rows, layer.hidden_size).to(torch.bfloat16)
            logits = (3 * torch.randn(rows, layer.global_num_experts)).to(torch.bfloat16).npu()
            weights, ids = (part.cpu() for part in choose(logits, layer.aloft_routing))
            got = layer.quant_method.apply_monolithic(layer, x.npu(), logits).cpu()
            want, lengths = expected(layer, values, x, weights, ids, activations)
            # the fused product has one bfloat16 result; else two values on the way are bfloat16 (2**-9 each). Scales of
            # 4-bit weights keep 10 bits beside int8 rows. What is near the middle of int8 steps may go another way.
            error = float(((got.double() - want).norm(dim=-1) / lengths).max())
            held = layer.aloft_experts
            allowed = 0.006 if held.fused and held.up.weight.dtype == torch.int8 else 0.01
            assert held.fused == bool(activations)
            print(f"error {error:.4f} of {allowed}")
            assert error < allowed
        layer.quant_method.process_weights_after_loading(layer)
        again = layer.quant_method.apply_monolithic(layer, x.npu(), logits).cpu()
        assert torch.equal(again, got)


@pytest.fixture(scope="module")
def experts_model(tmp_path_factory):
    import tiny_experts

    return tiny_experts.make(tmp_path_factory.mktemp("experts") / "model", "qwen3_moe")


@pytest.mark.parametrize(("writer", "changes", "activations"), CASES)
def test_formats(writer, changes, activations, experts_model, tmp_path):
    folder = tmp_path / "out"
    if writer == "compressed":
        values = checkpoints.int_quantized(experts_model, folder, *changes)
    else:
        values = checkpoints.grouped(experts_model, folder, writer, *changes)
    check_experts(folder, values, activations)


@pytest.mark.parametrize(
    ("kind", "scheme", "form", "group"),
    [
        ("mixtral", "w8a8-dynamic", "modelslim", None),
        ("qwen2_moe", "w4a8", "modelslim", 32),
        ("qwen2_moe", "w8a16", "modelslim", None),
        ("mixtral", "w4a16", "compressed-tensors", 32),
    ],
)
def test_written(kind, scheme, form, group, tmp_path):
    """What ``aloft quantize`` makes of a mixture of experts, read by the format's own formula."""
    import tiny_experts

    from aloft.quantizer import Settings, quantize

    model = tiny_experts.make(tmp_path / "model", kind)
    made = quantize(model, tmp_path / "out", Settings(scheme, form, group=group))
    floats, stored = checkpoints.tensors(model), checkpoints.tensors(tmp_path / "out")
    routers = [name for name in floats if name.endswith(("mlp.gate.weight", "moe.gate.weight"))]
    assert len(routers) == 2 and all(torch.equal(stored[name], floats[name]) for name in routers)
    values = checkpoints.modelslim(tmp_path / "out") if form == "modelslim" else stored_values(tmp_path / "out")
    assert {row["layer"] for row in made.layers} == set(values) and len(values) > 2 * 3 * tiny_experts.EXPERTS
    for name, value in values.items():
        error = (value - floats[f"{name}.weight"].double()).norm() / floats[f"{name}.weight"].double().norm()
        assert float(error) < (0.15 if "4" in scheme[:2] else 0.01)
    check_experts(tmp_path / "out", values, "" if scheme.endswith("a16") else "token")


def stored_values(folder):
    """float64 weights of packed 4-bit layers, by the format's own library."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    (group,) = said["config_groups"].values()
    library, scheme = BaseCompressor.get_value_from_registry(group["format"]), QuantizationScheme.model_validate(group)
    layers = {}
    for name, tensor in checkpoints.tensors(folder).items():
        layer, _, part = name.rpartition(".")
        layers.setdefault(layer, {})[part] = tensor
    return {
        layer: library.decompress(parts, scheme)["weight"].double()
        for layer, parts in layers.items()
        if "weight_scale" in parts
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scheme": "w4a4"}, "--scheme must be one of w8a16, w8a8-dynamic, w4a16, w4a8"),
        ({"scheme": "w8a8-static"}, "--scheme must be one of"),
        ({"scheme": "w8a16", "algorithm": "gptq"}, "--algorithm must be one of auto, mse, minmax"),
        ({"scheme": "w4a16", "target_bits": 5.0}, "not for mixtures of experts"),
    ],
)
def test_what_the_tool_refuses(changes, told, experts_model, tmp_path):
    from aloft.quantizer import Settings, quantize

    with pytest.raises(ValueError, match=told):
        quantize(experts_model, tmp_path / "out", Settings(**changes), __file__)


def test_what_is_missing_is_named(experts_model, tmp_path):
    """A tensor of one expert that the checkpoint lacks, or that has another size."""
    import inprocess

    checkpoints.int_quantized(experts_model, tmp_path / "out", 8, 8, 0)
    whole = checkpoints.tensors(tmp_path / "out")
    name = "model.layers.1.mlp.experts.3.up_proj.weight_scale"
    for tensors, told in (
        ({key: value for key, value in whole.items() if key != name}, "no 3.up_proj.weight_scale"),
        (whole | {name: whole[name][:-1].clone()}, "3.up_proj.weight_scale of shape"),
        (whole | {name: -whole[name]}, "w13_weight_scale must be positive"),
    ):
        save_file(tensors, tmp_path / "out" / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=told):
            inprocess.start(tmp_path / "out", max_num_seqs=2, num_gpu_blocks_override=80)
