"""Checkpoints that lack a tensor, or hold one that is no number, are refused."""

from __future__ import annotations

import json

import pytest
import torch


def _without(tensors, name):
    del tensors[name]


def _not_finite(tensors, name):
    tensors[name].view(-1)[3] = torch.nan


@pytest.mark.parametrize(
    ("tensor", "change", "words"),
    [
        ("self_attn.q_proj.weight_scale", _without, r"qkv_proj: .* no weight_scale \(only the parts \['k', 'v'\]"),
        ("mlp.up_proj.weight", _without, r"gate_up_proj: .* no weight \(only the parts \['0'\]"),
        ("mlp.down_proj.weight_scale", _without, r"down_proj: .* no weight_scale\."),
        ("self_attn.q_proj.weight_scale", _not_finite, "qkv_proj: .*not finite"),
    ],
)
def test_incomplete_checkpoint_is_refused(tensor, change, words, model, tmp_path):
    """Such parameters would hold whatever was in their memory."""
    import inprocess
    from safetensors.torch import load_file, save_file

    from aloft.quantizer import Settings, quantize

    quantize(model, tmp_path, Settings("w8a8-dynamic"))
    file, index = tmp_path / "model-block-00001.safetensors", tmp_path / "model.safetensors.index.json"
    held = load_file(file)
    change(held, f"model.layers.1.{tensor}")
    save_file(held, file, {"format": "pt"})
    places = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {n: f for n, f in places.items() if f != file.name or n in held}}))
    with pytest.raises(ValueError, match=words):
        inprocess.start(tmp_path, max_num_seqs=2, num_gpu_blocks_override=80)
