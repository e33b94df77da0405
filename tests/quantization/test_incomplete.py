"""Checkpoints that lack a tensor, hold one that is no number or of another size, or are not what was asked for."""

from __future__ import annotations

import json

import pytest
import torch

KEY = "model.layers.1."


def _without(*names):
    def change(tensors, description):
        for name in names:
            del tensors[KEY + name]

    return change


def _holding(name, value):
    def change(tensors, description):
        tensors[KEY + name].view(-1)[3] = value

    return change


def _halved(name):
    def change(tensors, description):
        tensors[KEY + name] = tensors[KEY + name][:, : tensors[KEY + name].shape[1] // 2].contiguous()

    return change


def _fractions(name):
    def change(tensors, description):
        tensors[KEY + name] = tensors[KEY + name].float() + 0.25

    return change


def _described(name, kind):
    def change(tensors, description):
        for key in description:
            if key.startswith(KEY + name):
                description[key] = kind

    return change


LAYER = "mlp.down_proj"
WRONG = [
    (_without("self_attn.q_proj.weight_scale"), r"qkv_proj: .* no weight_scale \(only the parts \['k', 'v'\]"),
    (_without("mlp.up_proj.weight"), r"gate_up_proj: .* no weight \(only the parts \['0'\]"),
    # whole parameters are missed by vLLM, which says so of all kinds of layers
    (_without(f"{LAYER}.weight_scale"), rf"not initialized from checkpoint: .*{LAYER}\.weight_scale"),
    (_without(*(f"{LAYER}.{part}" for part in ("weight", "weight_scale", "weight_offset"))), rf"{LAYER}\.weight'"),
    (_without("input_layernorm.weight"), r"layers\.1\.input_layernorm\.weight"),
    (_holding("self_attn.q_proj.weight_scale", torch.nan), r"qkv_proj: .*weight_scale must be positive.* nan\."),
    (
        _holding(f"{LAYER}.weight_scale", torch.inf),
        rf"{LAYER}: .*weight_scale must be positive and finite; 1 of",
    ),
    (_holding(f"{LAYER}.weight_scale", 0.0), rf"{LAYER}: .*weight_scale must be positive.* 0\.0\."),
    (_holding(f"{LAYER}.weight_scale", -1.0), rf"{LAYER}: .*weight_scale must be positive.* -1\.0\."),
    (_holding(f"{LAYER}.weight_offset", torch.nan), rf"{LAYER}: .*weight_offset must be finite"),
    (_halved(f"{LAYER}.weight"), rf"{LAYER}: .*weight of shape \[128, 96\] does not fit the \[128, 192\]"),
    (_fractions(f"{LAYER}.weight"), rf"{LAYER}: .*weight is of torch.float32 and no integers; .*torch.int8"),
    (_fractions("mlp.up_proj.weight"), r"gate_up_proj: .*weight is of torch.float32 and no integers"),
    (_described("self_attn.k_proj", "W8A16"), r"qkv_proj.*q_proj\.weight W8A8_DYNAMIC.*k_proj\.weight W8A16"),
    (_described(LAYER, "FLOAT"), rf"{LAYER}"),
    (_described("self_attn.v_proj", "FLOAT"), r"qkv_proj.*q_proj\.weight W8A8_DYNAMIC.*v_proj\.weight FLOAT"),
]


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    from aloft.quantizer import Settings, quantize

    folder = tmp_path_factory.mktemp("whole") / "out"
    quantize(model, folder, Settings("w8a8-dynamic", algorithm="minmax"))
    return folder


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[words.replace("\\", "")[:50] for _, words in WRONG])
def test_wrong_checkpoint_is_refused(change, words, checkpoint, tmp_path):
    """Such parameters would hold whatever was in their memory."""
    import shutil

    import inprocess
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "out"
    shutil.copytree(checkpoint, folder)
    file, index = folder / "model-block-00001.safetensors", folder / "model.safetensors.index.json"
    said = folder / "quant_model_description.json"
    held, description = load_file(file), json.loads(said.read_text())
    change(held, description)
    save_file(held, file, {"format": "pt"})
    said.write_text(json.dumps(description))
    places = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {n: f for n, f in places.items() if f != file.name or n in held}}))
    with pytest.raises(ValueError, match=words):
        inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)


def test_random_weights_are_of_no_checkpoint(checkpoint):
    """--load-format dummy loads nothing, and is not refused for it."""
    import inprocess

    llm = inprocess.start(checkpoint, max_num_seqs=2, num_gpu_blocks_override=80, load_format="dummy")
    (answer,) = llm.generate(["a"], use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16


def test_other_group_size(model, tmp_path):
    """A description that names another group size than the tensors were made with."""
    import checkpoints
    import inprocess

    folder = tmp_path / "out"
    checkpoints.grouped(model, folder, "awq", 32)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"layers\.0\..*(scales|qzeros).* of shape .* group size"):
        inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)


@pytest.mark.parametrize("asked", ["compressed-tensors", "awq", "gptq"])
def test_wrong_name_for_modelslim(asked, checkpoint):
    assert "quant_model_description.json (--quantization ascend)" in _refusal(checkpoint, asked)


@pytest.mark.parametrize("asked", ["ascend", "compressed-tensors", "gptq", "fp8"])
def test_wrong_name_for_awq(asked, model, tmp_path):
    import checkpoints

    checkpoints.grouped(model, tmp_path / "out", "awq", 32)
    assert "(awq) does not match" in _refusal(tmp_path / "out", asked)


def _refusal(folder, asked):
    from vllm.engine.arg_utils import EngineArgs

    with pytest.raises(ValueError) as raised:
        EngineArgs(model=str(folder), quantization=asked, max_model_len=64).create_engine_config()
    return str(raised.value)
