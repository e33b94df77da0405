"""Files of the measured models, in the cache: one Hugging Face folder, and the forms other engines read, made from it.

`SmolLM2-135M` is the demo model. `Qwen3-0.6B-shape` and `Llama-1B-shape` have the dimensions of Qwen3-0.6B and
Llama 3.2 1B and random weights (fixed seed): their speed is that of the real ones, their text is noise. GGUF files hold
the very weights of the folder in bfloat16, float16 or float32; 8- and 4-bit files are quantized from the float16 one by
llama.cpp itself (engines/llama_cpp.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMES = ("SmolLM2-135M", "Qwen3-0.6B-shape", "Llama-1B-shape")
VOCABULARY = {"SmolLM2-135M": 49_152, "Qwen3-0.6B-shape": 151_936, "Llama-1B-shape": 128_256}
GGUF_PLAIN = ("bf16", "f16", "f32")
SEED = 20_260
# Part of the names of GGUF files: another one when `write_gguf` writes something else for a model.
REVISION = {"SmolLM2-135M": "", "Qwen3-0.6B-shape": "-r2", "Llama-1B-shape": ""}
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 28,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "use_cache": True,
}
LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 128000,
    "eos_token_id": 128009,
    "use_cache": True,
}
RANDOM = {"Qwen3-0.6B-shape": QWEN3_06B, "Llama-1B-shape": LLAMA_1B}


def cache_folder() -> Path:
    """Where the files are kept: `benchmarks` below aloft's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "aloft" / "benchmarks"


def folder(name: str) -> Path:
    """The Hugging Face folder of a model, made where it is missing.

    Raises:
        ValueError: there is no such model.
    """
    if name == "SmolLM2-135M":
        from aloft.cli.demo_model import ensure

        return ensure()
    if name in RANDOM:
        return made(cache_folder() / f"{name}-s{SEED}", lambda target: make_random(target, RANDOM[name]))
    raise ValueError(f"there is no model {name!r}; valid: {', '.join(NAMES)}")


def gguf(name: str, kind: str) -> Path:
    """The model as a GGUF file of unquantized weights (`bf16`, `f16`, `f32`), made where it is missing."""
    source = folder(name)

    def make(target: Path) -> None:
        write_gguf(source, target, kind, name)

    return made(cache_folder() / f"{name}{REVISION[name]}-{kind}.gguf", make)


def quantized(name: str, kind: str, quantize: Callable[[Path, Path, str], None]) -> Path:
    """The model as a quantized GGUF file (`q8_0`, `q4_0`), made by `quantize(source, target, kind)` where missing."""
    source = gguf(name, "f16")
    return made(cache_folder() / f"{name}{REVISION[name]}-{kind}.gguf", lambda target: quantize(source, target, kind))


def aloft_quantized(name: str, scheme: str) -> Path:
    """The model quantized by `aloft quantize`, by rounding alone: what it costs in accuracy is not measured here."""

    def make(target: Path) -> None:
        command = [sys.executable, "-m", "aloft.cli.main", "quantize", str(folder(name)), str(target)]
        subprocess.run([*command, "--scheme", scheme, "--algorithm", "minmax"], check=True)

    form = "-2" if scheme == "w4a16" else ""  # its offsets have another sign since
    return made(cache_folder() / f"{name}-{scheme}{form}", make)


def made(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made under another name first, so that what is there is whole."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"making {target}", file=sys.stderr, flush=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        make(temporary / target.name)
        (temporary / target.name).rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def make_random(target: Path, config: dict[str, Any]) -> None:
    """Random weights in a model's shape: every projection keeps the size of what it is given."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(SEED)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def random(rows: int, columns: int, scale: float | None = None) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator)
        return (values * (columns**-0.5 if scale is None else scale)).to(torch.bfloat16)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": random(config["vocab_size"], hidden, 0.1),
        "model.norm.weight": ones(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        tensors |= {
            base + "input_layernorm.weight": ones(hidden),
            base + "post_attention_layernorm.weight": ones(hidden),
            base + "self_attn.q_proj.weight": random(query, hidden),
            base + "self_attn.k_proj.weight": random(key, hidden),
            base + "self_attn.v_proj.weight": random(key, hidden),
            base + "self_attn.o_proj.weight": random(hidden, query),
            base + "mlp.gate_proj.weight": random(inner, hidden),
            base + "mlp.up_proj.weight": random(inner, hidden),
            base + "mlp.down_proj.weight": random(hidden, inner),
        }
        if config["model_type"] == "qwen3":
            tensors |= {base + f"self_attn.{part}_norm.weight": ones(head) for part in "qk"}
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"], "do_sample": False}
    (target / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def tensors_for_gguf(source: Path, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(GGUF name, float32 array) of each weight; llama's query and key rows in GGUF's order (pairs side by side)."""
    from safetensors import safe_open

    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    with safe_open(source / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            values = file.get_tensor(name).float().numpy()
            if config["model_type"] == "llama":
                for part, count in heads.items():
                    if f".{part}." in name:
                        rows, columns = values.shape
                        halves = values.reshape(count, 2, rows // count // 2, columns)
                        values = halves.swapaxes(1, 2).reshape(rows, columns)
            yield gguf_name(name), values


def write_gguf(source: Path, target: Path, kind: str, name: str) -> None:
    """Write `source` as a GGUF file whose matrices are of `kind`; vectors stay float32, as llama.cpp wants them."""
    import gguf as format
    import numpy

    config = json.loads((source / "config.json").read_text())
    types = format.GGMLQuantizationType
    wanted = {"bf16": types.BF16, "f16": types.F16, "f32": types.F32}[kind]
    file_type = {"bf16": format.LlamaFileType.MOSTLY_BF16, "f16": format.LlamaFileType.MOSTLY_F16}
    writer = format.GGUFWriter(target, config["model_type"])
    writer.add_name(name)
    writer.add_file_type(file_type.get(kind, format.LlamaFileType.ALL_F32))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, source, name)
    for tensor, values in tensors_for_gguf(source, config):
        if values.ndim == 1 or kind == "f32":
            writer.add_tensor(tensor, numpy.ascontiguousarray(values))
        else:
            data = format.quants.quantize(values, wanted)
            writer.add_tensor(tensor, data, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, source: Path, name: str) -> None:
    """The demo model's tokenizer as its package's GGUF file has it; a placeholder where there is none.

    OpenVINO refuses a file without; prompts are token ids everywhere.
    """
    if name != "SmolLM2-135M":
        config = RANDOM[name]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2" if config["model_type"] == "qwen3" else "llama-bpe")
        writer.add_token_list([f"t{number}" for number in range(VOCABULARY[name])])
        writer.add_token_types([1] * VOCABULARY[name])
        writer.add_token_merges(["t 1"])
        writer.add_bos_token_id(config["bos_token_id"])
        writer.add_eos_token_id(config["eos_token_id"])
        writer.add_add_bos_token(False)
        return
    import gguf as format

    from aloft.cli.demo_model import _find_gguf

    for key, field in format.GGUFReader(_find_gguf()).fields.items():
        if not key.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.types[0] == format.GGUFValueType.ARRAY:
            writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1])
        else:
            writer.add_key_value(key, value, field.types[0])
