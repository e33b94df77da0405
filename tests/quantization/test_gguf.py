"""GGUF files written by the format's own library: read, served, and refused where they cannot be."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys

import checkpoints
import numpy
import pytest
import torch
from test_engine import SHARDS, product

HEADS = {"attn_q": 4, "attn_k": 2}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    **{
        f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}"
        for layer in range(2)
        for ours, theirs in {
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }.items()
    },
}


def write(model, path, kind, others=None, more=None, architecture="llama", change=lambda name, weight: weight):
    """The tiny model as a GGUF file. kind: of its layers; others: tensor -> another kind. Returns float64 weights."""
    import gguf
    from gguf.quants import dequantize, quantize

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(128)
    writer.add_feed_forward_length(192)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(320)
    for key, value in (more or {}).items():
        writer.add_string(key, value)
    values = {}
    for name, tensor in checkpoints.tensors(model).items():
        layer = name.removesuffix(".weight")
        target = f"{NAMES[layer]}.weight"
        weight = change(name, tensor.float()).numpy()
        turned = HEADS.get(target.split(".")[2]) if target.startswith("blk.") else None
        if turned:
            weight = weight.reshape(turned, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        chosen = (others or {}).get(target, kind if name.endswith("_proj.weight") else "F32")
        held = quantize(weight, gguf.GGMLQuantizationType[chosen])
        writer.add_tensor(target, held, raw_dtype=gguf.GGMLQuantizationType[chosen])
        back = torch.from_numpy(dequantize(held, gguf.GGMLQuantizationType[chosen])).double()
        if turned:
            back = back.view(turned, -1, 2, back.shape[1]).swapaxes(1, 2).reshape(back.shape)
        values[layer] = back
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def beside(model, folder):
    """config.json and the tokenizer, without weights."""
    return shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks(kind):
    """Codes, scales and offsets make the weights the library makes, constant and empty blocks too."""
    import gguf
    from gguf.quants import dequantize, quantize

    from aloft.quantization.gguf import blocks

    weight = numpy.random.default_rng(3).normal(size=(7, 128)).astype(numpy.float32)
    weight[1, 32:64], weight[2, :32], weight[3] = 0.25, 0, -1.5
    raw = quantize(weight, gguf.GGMLQuantizationType[kind])
    codes, scale, offset = blocks.split(raw, kind)
    assert codes.dtype == torch.int8 and scale.shape == offset.shape == (7, 4)
    if kind != "Q8_0":
        assert int(codes.min()) >= -8 and int(codes.max()) <= 7
    made = (codes.double() - offset.double().repeat_interleave(32, 1)) * scale.double().repeat_interleave(32, 1)
    want = torch.from_numpy(dequantize(raw, gguf.GGMLQuantizationType[kind])).double()
    assert torch.allclose(made, want, rtol=0, atol=0 if kind != "Q4_1" else 1e-6)


SERVED = [
    ("Q8_0", {"token_embd.weight": "Q8_0", "output.weight": "Q8_0"}, "bfloat16"),
    ("Q8_0", {}, "float16"),
    ("Q4_0", {"token_embd.weight": "Q4_0"}, "bfloat16"),
    ("Q4_1", {"blk.1.attn_v.weight": "Q8_0", "output.weight": "Q5_1"}, "bfloat16"),  # parts of two widths
    ("Q4_0", {"blk.0.ffn_down.weight": "F16", "blk.1.attn_output.weight": "BF16"}, "float16"),
]


@pytest.mark.parametrize(("kind", "others", "dtype"), SERVED)
def test_served(kind, others, dtype, model, tmp_path):
    """Every product against the library's dequantized weights; scales are rounded to the model's dtype."""
    import inprocess

    folder = beside(model, tmp_path / "served")
    values = write(model, folder / "tiny.gguf", kind, others)
    llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80, dtype=dtype)
    (answer,) = llm.generate(["The square of"], use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16
    assert llm.llm_engine.model_config.quantization == "gguf"
    torch.manual_seed(1)
    seen = 0
    type_ = getattr(torch, dtype)
    each = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[type_]
    for name, module in inprocess.runner(llm).model.named_modules():
        parent, dot, last = name.rpartition(".")
        parts = [f"{parent}{dot}{shard}" for shard in SHARDS.get(last, (last,))]
        if parts[0] not in values or not last.endswith(("_proj", "lm_head")):
            continue
        weight = torch.cat([values[part] for part in parts])
        x = torch.randn(5, weight.shape[1]).to(type_)
        got = product(module, x).cpu().double()[:, : len(weight)]
        want = x.double() @ weight.t()
        # Q4_1's offset is rounded as well: up to 8 steps of a block, a step being a fifteenth of its range
        held = weight.abs() if kind != "Q4_1" else weight.abs() + weight.abs().amax()
        allowed = each * want.abs() + each * (x.double().abs() @ held.t()) + 1e-6
        assert ((got - want).abs() <= allowed).all(), (name, float(((got - want).abs() / allowed).max()))
        seen += 1
    assert seen == 9
    made = inprocess.runner(llm).model
    assert not hasattr(made.lm_head, "packed")
    assert hasattr(made.model.embed_tokens, "packed") == ("token_embd.weight" in others)
    want = values["model.embed_tokens"]
    got = made.model.embed_tokens(torch.arange(len(want)).npu()).cpu()
    if "token_embd.weight" not in others:
        assert torch.equal(got, want.to(type_))
    assert ((got.double() - want).abs() <= 2 * each * want.abs()).all()  # a rounded scale, a rounded product


def test_file_alone(tmp_path):
    """The real file, by its name: config, tokenizer and template come from its metadata."""
    from transformers import AutoTokenizer

    from aloft.cli.demo_model import _find_gguf, ensure
    from aloft.quantization.gguf.folder import model_folder

    file = _find_gguf()
    alone = tmp_path / "alone" / file.name
    alone.parent.mkdir()
    alone.symlink_to(file)
    made = model_folder(str(alone))
    assert model_folder(str(alone)) == made == model_folder(str(alone.parent)) == model_folder(made)
    said = json.loads((tmp_path.joinpath(made, "config.json")).read_text())
    assert said["architectures"] == ["LlamaForCausalLM"] and said["tie_word_embeddings"]
    text = "Hello world! 123 na\u00efve\n\n  <|im_start|>user\nhi<|im_end|>"
    assert (
        AutoTokenizer.from_pretrained(made)(text).input_ids == AutoTokenizer.from_pretrained(ensure())(text).input_ids
    )


def test_command_line(model, tmp_path):
    """vllm serve FILE and --model FILE mean the file's folder, by the file's name; what is wrong is said at once."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    folder = beside(model, tmp_path / "served")
    write(model, folder / "tiny.gguf", "Q4_0")
    parser = FlexibleArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    AsyncEngineArgs.add_cli_args(parser)
    file = str(folder / "tiny.gguf")
    assert parser.parse_args([file]).model_tag == file
    made = AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", file])).create_engine_config().model_config
    assert (tmp_path / made.model / "tiny.gguf").resolve() == folder / "tiny.gguf"
    assert made.tokenizer == made.model and made.served_model_name == file and made.quantization == "gguf"
    named = ["--model", file, "--served-model-name", "mine", "--tokenizer", str(model), "--quantization", "gguf"]
    made = AsyncEngineArgs.from_cli_args(parser.parse_args(named)).create_engine_config().model_config
    assert made.tokenizer == str(model) and made.served_model_name == "mine"
    assert parser.parse_args(["--model", str(folder)]).model == str(folder)
    with pytest.raises(argparse.ArgumentError, match=r"no file .*none\.gguf"):
        parser.parse_args([str(tmp_path / "none.gguf")])


REFUSED = [
    ({"others": {"blk.1.ffn_up.weight": "Q5_0"}}, r"blk\.1\.ffn_up\.weight has the type Q5_0; served are Q8_0, Q4_0"),
    ({"others": {"blk.0.attn_k.weight": "F16"}}, r"attn_q\.weight Q4_0, blk\.0\.attn_k\.weight F16"),
    ({"architecture": "mamba"}, "'mamba' is not served; served are llama, qwen2, qwen3"),
    (
        {"change": lambda name, weight: weight * (torch.nan if "down" in name else 1)},
        "down_proj: .*weight_scale.*finite",
    ),
]


@pytest.mark.parametrize(("how", "words"), REFUSED)
def test_refused(how, words, model, tmp_path):
    import inprocess

    folder = beside(model, tmp_path / "served")
    write(model, folder / "tiny.gguf", "Q4_0", **how)
    with pytest.raises(ValueError, match=words):
        inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)


def test_damaged(model, tmp_path):
    from aloft.quantization import gguf
    from aloft.quantization.gguf.folder import model_folder
    from aloft.quantization.gguf.index import read

    (tmp_path / "none.gguf").write_bytes(b"GGUX" + bytes(64))
    with pytest.raises(ValueError, match=r"none\.gguf is no GGUF file: it begins with b'GGUX'"):
        model_folder(str(tmp_path / "none.gguf"))
    (tmp_path / "none.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none\.gguf is no GGUF file: it is empty\.$"):
        model_folder(str(tmp_path / "none.gguf"))
    write(model, tmp_path / "whole.gguf", "Q8_0", more={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(ValueError, match=r"several|2 GGUF files \(none\.gguf, whole\.gguf\)"):
        gguf.find(tmp_path)
    with pytest.raises(ValueError, match=r"llama\.rope\.scaling\.type"):
        from aloft.quantization.gguf.folder import _write_config

        _write_config(read(tmp_path / "whole.gguf"), tmp_path)
    content = (tmp_path / "whole.gguf").read_bytes()
    for bytes_left in (6, 3000, len(content) // 2, len(content) - 7):
        (tmp_path / "cut.gguf").write_bytes(content[:bytes_left])
        with pytest.raises(ValueError, match=rf"cut\.gguf \({bytes_left} bytes\) is cut off"):
            read(tmp_path / "cut.gguf")


def test_what_is_no_gguf_file_is_told_before_anything_slow_is_imported(tmp_path):
    (tmp_path / "none.gguf").write_text("hello")
    check = (
        "import sys\n"
        "from aloft.quantization.gguf.folder import model_folder\n"
        "try:\n"
        "    model_folder(sys.argv[1])\n"
        "except ValueError as error:\n"
        '    sys.exit(f\'{error} {sorted({"torch", "vllm"} & sys.modules.keys())}\')\n'
    )
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", check, str(tmp_path / "none.gguf")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert ended.stderr.strip().endswith("not with b'GGUF'. []"), ended.stderr


def test_no_tokenizer(model, tmp_path):
    from aloft.quantization.gguf.folder import model_folder

    write(model, tmp_path / "bare.gguf", "Q8_0", more={"tokenizer.ggml.model": "gpt2"})
    with pytest.raises(
        ValueError,
        match=r"No tokenizer can be made from the metadata of .*bare\.gguf: put .*name another with --tokenizer",
    ):
        model_folder(str(tmp_path / "bare.gguf"))
    assert model_folder(str(tmp_path / "bare.gguf"), own_tokenizer=False)
