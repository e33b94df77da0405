"""What descriptions say about layers, and how wrong ones are refused: by layer and key."""

from __future__ import annotations

import pytest

from aloft.quantization.formats.compressed_tensors import CompressedTensors
from aloft.quantization.formats.grouped import Awq, Gptq
from aloft.quantization.formats.modelslim import REFUSED, ModelSlim

LAYER = "model.layers.0.self_attn.q_proj"
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def group(**changes):
    made = {"targets": ["Linear"], "weights": INT8, "input_activations": TOKEN, "format": "int-quantized"} | changes
    return {"config_groups": {"group_0": made}, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("W8A8", "w8a8-static"),
        ("W8A8_DYNAMIC", "w8a8-dynamic"),
        ("W8A16", "w8a16"),
        ("W4A16", "w4a16"),
        ("W4A8_DYNAMIC", "w4a8"),
        ("W4A4_FLATQUANT_DYNAMIC", "w4a4"),
    ],
)
def test_modelslim_schemes(kind, scheme):
    said = ModelSlim({f"{LAYER}.weight": kind, f"{LAYER}.weight_scale": kind, "version": "1.0.0"})
    assert said.linear(LAYER, [LAYER]).name == scheme


def test_modelslim_mixed_and_caches():
    said = ModelSlim(
        {
            "a.q_proj.weight": "W8A8",
            "a.k_proj.weight": "FLOAT",
            "a.k_proj.kv_cache_scale": "C8",
            "b.o_proj.weight": "FLOAT",
            "kv_cache_type": "C8",
        }
    )
    assert said.linear("b.o_proj", ["b.o_proj"]) is None
    assert said.kv_cache("a.attn").name == "kv-int8" and said.kv_cache("b.attn") is None
    with pytest.raises(ValueError, match=r"a\.qkv_proj.*a\.q_proj\.weight W8A8, a\.k_proj\.weight FLOAT"):
        said.linear("a.qkv_proj", ["a.q_proj", "a.k_proj"])
    with pytest.raises(ValueError, match=r"c\.o_proj.*'c\.o_proj\.weight'"):
        said.linear("c.o_proj", ["c.o_proj"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({f"{LAYER}.weight": "W3A8"}, [LAYER, "W3A8", "W8A8_DYNAMIC"]),
        ({f"{LAYER}.weigth": "W8A8"}, [LAYER, "weigth"]),
        ({f"{LAYER}.weight": "W8A8", f"{LAYER}.weight_scale": "W8A16"}, [LAYER, "weight_scale", "W8A16", "W8A8"]),
        ({f"{LAYER}.weight_scale": "W8A8"}, [LAYER, "weight_scale", "weight"]),
        ({"kv_cache_type": "C4"}, ["kv_cache_type", "C4"]),
        ({"fa_quant_type": "FAKQuant"}, ["fa_quant_type"]),
        ({"model.norm.weight": "FLOAT", "model.norm.bias": "FLOAT"}, ["model.norm", "bias"]),
        *(({f"{LAYER}.weight": kind}, [LAYER, kind, why]) for kind, why in REFUSED.items()),
    ],
)
def test_modelslim_refusals(content, words):
    with pytest.raises(ValueError) as raised:
        ModelSlim(content)
    assert all(word in str(raised.value) for word in words), raised.value


def test_compressed_tensors_targets():
    said = CompressedTensors(
        {
            "config_groups": {
                "class": {"targets": ["Linear"], "weights": INT8, "format": "pack-quantized"},
                "named": {"targets": ["re:.*down_proj", "x.o_proj"], "weights": INT8, "input_activations": TOKEN}
                | {"format": "int-quantized"},
            },
            "ignore": ["lm_head", "re:.*gate$"],
        }
    )
    names = {"y.o_proj": "w8a16", "x.o_proj": "w8a8-dynamic", "x.down_proj": "w8a8-dynamic"}
    assert {name: said.linear(name, [name]).name for name in names} == names
    assert said.linear("lm_head", ["lm_head"]) is None and said.linear("x.gate", ["x.gate"]) is None
    with pytest.raises(ValueError, match=r"x\.fused.*x\.o_proj w8a8-dynamic"):
        said.linear("x.fused", ["x.o_proj", "y.o_proj"])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, ["config_groups"]),
        (group(format="float-quantized"), ["group_0", "float-quantized"]),
        (group(weights=INT8 | {"type": "float"}), ["group_0", "FP8"]),
        (group(weights=INT8 | {"num_bits": 3}), ["num_bits", "3"]),
        (group(weights=INT8 | {"strategy": "block"}), ["strategy", "block"]),
        (group(weights=INT8 | {"symmetric": False}), ["weights.symmetric"]),
        (group(input_activations=TOKEN | {"strategy": "group"}), ["input_activations", "group"]),
        (group(output_activations=TOKEN), ["output_activations"]),
        (group() | {"kv_cache_scheme": {"num_bits": 8}}, ["kv_cache_scheme"]),
        (group() | {"transform_config": {"a": 1}}, ["transform_config"]),
    ],
)
def test_compressed_tensors_refusals(config, words):
    with pytest.raises(ValueError) as raised:
        CompressedTensors(config)
    assert all(word in str(raised.value) for word in words), raised.value


def test_grouped():
    awq = Awq({"bits": 4, "group_size": 64, "modules_to_not_convert": ["layers.1"]})
    assert awq.linear("model.layers.0.o_proj", ["model.layers.0.o_proj"]).name == "w4a16"
    assert awq.linear("model.layers.1.o_proj", ["model.layers.1.o_proj"]) is None
    assert awq.linear("model.layers.11.o_proj", ["model.layers.11.o_proj"]) is not None
    assert awq.linear("lm_head", ["lm_head"]) is None
    assert Gptq({"bits": 8, "group_size": -1}).linear("a", ["a"]).name == "w8a16"
    for bad in ({"bits": 4, "group_size": 0}, {"bits": 3, "group_size": 64}, {"bits": 8, "group_size": 64}):
        with pytest.raises(ValueError, match="gptq"):
            Gptq(bad)
    with pytest.raises(ValueError, match="version"):
        Awq({"bits": 4, "group_size": 64, "version": "gemv"})
