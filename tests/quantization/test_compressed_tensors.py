"""Checkpoints made by compressed-tensors itself, from a model to the folder, in an engine."""

from __future__ import annotations

import json
import shutil

import checkpoints
import pytest
import torch
from safetensors.torch import save_file
from test_engine import check_layers

CASES = [  # the library's preset, changes of its weights, changes of its activations, how activations are rounded
    ("W8A16", {"group_size": 64}, None, ""),
    ("W8A16", {"strategy": "channel", "group_size": None}, None, ""),
    ("W4A16", {"group_size": 32}, None, ""),
    ("W4A16", {"group_size": 64, "actorder": "group"}, None, ""),
    ("W4A16_ASYM", {"group_size": 64}, None, ""),
    ("W4A16_ASYM", {"strategy": "channel", "group_size": None}, None, ""),
    ("W8A8", {}, {}, "token"),
    ("W8A8", {}, {"symmetric": False}, "asymmetric"),
    ("W8A8", {"strategy": "group", "group_size": 64}, {}, "token"),
    ("W8A8", {}, {"dynamic": False, "strategy": "tensor"}, "static"),
    ("W8A8", {}, {"dynamic": False, "strategy": "tensor", "symmetric": False}, "static"),
    ("W4A8", {"group_size": 64}, {}, "token"),
    ("W4A8", {"strategy": "channel", "group_size": None}, {}, "token"),
]


def write(model, folder, preset, weights, activations, ignore=("lm_head",), targets=("Linear",)):
    """The library's own config, tensors and packing; scales by its rule, from the weights' ranges."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams
    from transformers import AutoModelForCausalLM

    scheme = preset_name_to_scheme(preset, list(targets))
    scheme.weights = QuantizationArgs(**(scheme.weights.model_dump() | weights))
    if activations:
        changed = scheme.input_activations.model_dump(exclude={"observer"}) | activations
        scheme.input_activations = QuantizationArgs(**changed)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=list(ignore))
    made = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    apply_quantization_config(made, config)
    for module in made.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        columns = module.weight.shape[1]
        size, order = scheme.weights.group_size or columns, torch.arange(columns)
        if hasattr(module, "weight_g_idx"):
            order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
            module.weight_g_idx.data = (torch.arange(columns) // size)[torch.argsort(order)].int()
        parts = module.weight.data[:, order].unflatten(1, (-1, size)).float()
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), scheme.weights)
        module.weight_scale.data.copy_(scale)
        module.weight_zero_point.data.copy_(zero)
        if hasattr(module, "input_scale"):
            module.input_scale.data.fill_(0.0234375)
            module.input_zero_point.data.fill_(0 if scheme.input_activations.symmetric else -9)
    compressor = ModelCompressor.from_pretrained_model(made)
    compressor.compress_model(made)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    stored = {name: tensor.contiguous() for name, tensor in made.state_dict().items()}
    if made.config.tie_word_embeddings:
        stored = {name: tensor for name, tensor in stored.items() if not name.startswith("lm_head.")}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    compressor.update_config(str(folder))
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]


@pytest.mark.parametrize(("preset", "weights", "activations", "rounded"), CASES)
def test_made_by_the_library(preset, weights, activations, rounded, model, tmp_path):
    folder = tmp_path / "out"
    write(model, folder, preset, weights, activations)
    check_layers(folder, checkpoints.compressed(folder), rounded)


@pytest.mark.parametrize(
    ("preset", "weights", "activations", "rounded"),
    [
        ("W8A16", {"group_size": 64}, None, ""),
        ("W8A16", {"strategy": "channel", "group_size": None}, None, ""),
        ("W8A8", {}, {}, "token"),
        ("W8A8", {}, {"symmetric": False}, "asymmetric"),
        ("W4A16_ASYM", {"group_size": 64}, None, ""),
        ("W4A8", {"group_size": 64}, {}, "token"),
    ],
)
def test_quantized_head(preset, weights, activations, rounded, model, tmp_path):
    """Also where the vocabulary is no multiple of 64, which vLLM pads it to."""
    small = tmp_path / "small"
    shutil.copytree(model, small)
    config = json.loads((small / "config.json").read_text()) | {"vocab_size": 296}
    (small / "config.json").write_text(json.dumps(config))
    held = checkpoints.tensors(model)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        held[name] = held[name][:296].contiguous()
    save_file(held, small / "model.safetensors", {"format": "pt"})
    write(small, tmp_path / "out", preset, weights, activations, ignore=())
    values = checkpoints.compressed(tmp_path / "out")
    assert "lm_head" in values
    check_layers(tmp_path / "out", values, rounded)
