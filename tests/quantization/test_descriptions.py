"""What descriptions say about layers, and how wrong ones are refused: by layer and key."""

from __future__ import annotations

import json
import time

import pytest

from aloft.quantization.formats.compressed_tensors import CompressedTensors
from aloft.quantization.formats.grouped import Awq, Gptq
from aloft.quantization.formats.modelslim import REFUSED, ModelSlim, find

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
        ({"group_size": -32}, ["group_size", "-32"]),
        ({"group_size": "64"}, ["group_size", "'64'"]),
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


def test_compressed_tensors_order():
    """The first group that names a layer has it, by name or by pattern."""
    by_token = {"weights": INT8, "input_activations": TOKEN, "format": "int-quantized"}
    plain = {"weights": INT8, "format": "pack-quantized"}
    groups = {"a": {"targets": ["re:.*q_proj"]} | by_token, "b": {"targets": ["x.q_proj", "x.o_proj"]} | plain}
    said = CompressedTensors({"config_groups": groups})
    assert said.linear("x.q_proj", ["x.q_proj"]).name == "w8a8-dynamic"
    assert said.linear("x.o_proj", ["x.o_proj"]).name == "w8a16"
    said = CompressedTensors({"config_groups": dict(reversed(groups.items()))})
    assert said.linear("x.q_proj", ["x.q_proj"]).name == "w8a16"


def test_parts_that_differ_in_their_groups():
    four = INT8 | {"num_bits": 4, "strategy": "group"}
    groups = {
        size: {"targets": [name], "weights": four | {"group_size": size}, "format": "pack-quantized"}
        for size, name in ((32, "x.q_proj"), (64, "x.k_proj"))
    }
    with pytest.raises(ValueError, match=r"x\.qkv_proj.*x\.q_proj w4a16.*group=32.*x\.k_proj w4a16.*group=64"):
        CompressedTensors({"config_groups": groups}).linear("x.qkv_proj", ["x.q_proj", "x.k_proj"])


def _described(form, count):
    """A description that names ``count`` layers; their names."""
    names = [f"model.layers.{i // 4}.mlp.experts.{i % 4}.up_proj" for i in range(count)]
    if form == "modelslim":
        return ModelSlim({f"{name}.{part}": "W8A16" for name in names for part in ("weight", "weight_scale")}), names
    if form == "awq":
        return Awq({"bits": 4, "group_size": 64, "modules_to_not_convert": names}), names
    weights = {"weights": INT8, "format": "pack-quantized"}
    groups = {str(i): {"targets": names[i :: count // 10]} | weights for i in range(count // 10)}
    return CompressedTensors({"config_groups": groups, "ignore": names[::7]}), names


@pytest.mark.parametrize("form", ["modelslim", "compressed-tensors", "awq"])
def test_cost_of_a_layer(form):
    """Asking about a layer costs the same whether the description has 1,000 keys or 200,000."""
    costs = []
    for count in (1000, 200_000):
        start = time.process_time()
        said, names = _described(form, count)
        said.rename({})
        made = time.process_time() - start
        asked = names[:: count // 1000]
        taken = []
        for _ in range(5):
            start = time.process_time()
            for name in asked:
                said.linear(name, [name])
            taken.append(time.process_time() - start)
        costs.append(min(taken))
    assert made < 10 and costs[1] < 10 * costs[0] + 0.005, (made, costs)  # a scan would cost 200 times as much


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
        (
            group(weights=INT8 | {"num_bits": 4}, input_activations=TOKEN | {"symmetric": False}),
            ["group_0", "input_activations", "symmetric False", "4-bit weights", "for 8 bits asymmetric dynamic"],
        ),
        (group(output_activations=TOKEN), ["output_activations"]),
        (group(weights=INT8 | {"actorder": "random"}), ["group_0", "actorder", "random"]),
        (group() | {"kv_cache_scheme": {"num_bits": 8}}, ["kv_cache_scheme"]),
        (group() | {"transform_config": {"a": 1}}, ["transform_config"]),
        (group() | {"format": "bogus"}, ["format", "bogus", "pack-quantized"]),
        ({"config_groups": {"group_0": None}}, ["group_0", "object"]),
        *(
            (group(weights=INT8 | {"strategy": "group", "group_size": size}), ["group_0", "group_size", repr(size)])
            for size in (0, -1, None, "64")
        ),
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
    for bad in ({"bits": 4, "group_size": 0}, {"bits": 3, "group_size": 64}):
        with pytest.raises(ValueError, match="gptq"):
            Gptq(bad)
    with pytest.raises(ValueError, match="version"):
        Awq({"bits": 4, "group_size": 64, "version": "gemv"})


def test_a_checkpoint_whose_offsets_have_the_other_sign(tmp_path):
    """W4A16 by an aloft that added ModelSlim's offsets, as its report tells, is not misread."""
    (tmp_path / "quant_model_description.json").write_text("{}")
    for said, refused in (({"settings": {"scheme": "w4a16"}}, True), ({"settings": {"scheme": "w8a16"}}, False)):
        (tmp_path / "aloft-quantize.json").write_text(json.dumps(said))
        if refused:
            with pytest.raises(ValueError, match=r"made by an early aloft.*make it again"):
                find(str(tmp_path))
        else:
            assert find(str(tmp_path)) == {}
        (tmp_path / "aloft-quantize.json").write_text(json.dumps(said | {"aloft": "1"}))
        assert find(str(tmp_path)) == {}
