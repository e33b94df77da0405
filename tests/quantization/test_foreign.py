"""Layers quantized by the formats' own tools, kept in ``data/``: their names, their sizes, and what they stand for.

``modelslim.safetensors``: two layers of a random model by msmodelslim 26.1.0, in every kind it makes on a CPU; those
with groups of 8-bit and W4A4 weights by its per-group quantizer and its writer.
``grouped.safetensors``: a random layer by autoawq 0.2.9 and auto-gptq 0.7.1, and what their own code makes of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from vllm.model_executor import parameter as vllm_parameter

from aloft.quantization.description import LayerShape
from aloft.quantization.formats.grouped import Awq, Gptq
from aloft.quantization.formats.modelslim import ModelSlim

DATA = Path(__file__).parent / "data"
LAYERS = ("model.layers.0.self_attn.v_proj", "model.layers.0.mlp.down_proj")


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    monkeypatch.setattr(vllm_parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(vllm_parameter, "get_tensor_model_parallel_world_size", lambda: 1)


def read(described, tensors, shape):
    """The layer as an engine would load it; every tensor has its place, and nothing more is wanted."""
    layer = torch.nn.Module()
    described.storage.create(layer, shape)
    places = dict(layer.named_parameters())
    assert set(places) == set(tensors)
    for name, place in places.items():
        place.load_row_parallel_weight(loaded_weight=tensors[name])
    return described.storage.read(layer, shape)


@pytest.mark.parametrize(
    ("kind", "scheme", "error"),
    [
        ("w8a16", "w8a16", 0.009),
        ("w8a8", "w8a8-static", 0.009),
        ("w8a8_dynamic", "w8a8-dynamic", 0.009),
        ("w4a16", "w4a16", 0.13),
        ("w4a8_dynamic", "w4a8", 0.13),
        ("w8a16_group", "w8a16", 0.009),
        ("w8a8_dynamic_group", "w8a8-dynamic", 0.009),
        ("w4a4_dynamic_group", "w4a4", 0.18),  # GPTQ: errors are moved between columns, not least in each
    ],
)
@pytest.mark.parametrize("name", LAYERS)
def test_modelslim(kind, scheme, error, name):
    with safe_open(DATA / "modelslim.safetensors", "pt") as file:
        said = ModelSlim(json.loads(file.metadata()["descriptions"])[kind])
        start = f"{kind}/{name}."
        tensors = {key.removeprefix(start): file.get_tensor(key) for key in file.keys() if key.startswith(start)}  # noqa: SIM118
        weight = file.get_tensor(f"float/{name}.weight").double()
    described = said.linear(name, [name])
    assert described.name == scheme
    rows, columns = weight.shape
    shape = LayerShape(name, columns, (rows,), columns, torch.bfloat16, lambda *_: None)
    got = read(described, tensors, shape)
    off = (got.dequantized().double() - weight).norm() / weight.norm()
    assert off < error, float(off)  # a wrong order of nibbles, or sign of offsets, makes 0.6 and more
    assert (got.zero is not None) == ("a16" in kind)
    assert got.group == (32 if kind.endswith("group") else 64 if kind == "w4a8_dynamic" else 0)
    if kind == "w8a8":
        offset = float(got.input_offset[0])
        assert offset != 0 and torch.equal(
            got.integer_bias, -(got.values.sum(1, dtype=torch.int64) * int(offset)).int()
        )
        assert torch.allclose(tensors["deq_scale"], got.scale.flatten() * got.input_scale, rtol=0.01)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("awq", {"bits": 4, "zero_point": True, "version": "gemm"}),
        ("gptq4a", {"bits": 4, "sym": False}),
        ("gptq4s", {"bits": 4, "sym": True}),
        ("gptq8a", {"bits": 8, "sym": False}),
        ("gptq8s", {"bits": 8, "sym": True}),
        ("gptq4order", {"bits": 4, "sym": False, "desc_act": True}),
    ],
)
def test_grouped(kind, said):
    with safe_open(DATA / "grouped.safetensors", "pt") as file:
        names = [key for key in file.keys() if key.startswith(f"{kind}/")]  # noqa: SIM118
        tensors = {key.partition("/")[2]: file.get_tensor(key) for key in names}
    value = tensors.pop("value").double()
    described = (Awq if kind == "awq" else Gptq)(said | {"group_size": 32}).linear("a.proj", ["a.proj"])
    rows, columns = value.shape
    shape = LayerShape("a.proj", columns, (rows,), columns, torch.float16, lambda *_: None)
    got = read(described, tensors, shape)
    assert (got.dequantized().double() - value).abs().max() <= 2.0**-11 * 4  # theirs is rounded to float16
