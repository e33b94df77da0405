"""Quantized vocabulary tables: rows and tied heads against float64, and checkpoints that have them in an engine."""

from __future__ import annotations

import json
import shutil

import checkpoints
import pytest
import torch
from safetensors.torch import save_file
from test_compressed_tensors import write
from test_engine import compare, product

from aloft.ops.projection import multiply
from aloft.quantization.description import LayerShape
from aloft.quantization.registry import EMBEDDING, method
from aloft.quantization.weight import QuantizedWeight

VOCABULARY, HIDDEN = 296, 128  # vLLM pads the one to a multiple of 64
TABLE = "model.embed_tokens"


def shape(dtype=torch.bfloat16, hidden=HIDDEN):
    return LayerShape(TABLE, hidden, (VOCABULARY,), hidden, dtype, lambda *_: None)


def made(bits, group, zeros, hidden=HIDDEN):
    torch.manual_seed(bits + group)
    high = 2 ** (bits - 1)
    groups = hidden // (group or hidden)
    codes = torch.randint(-high, high, (VOCABULARY, hidden), dtype=torch.int8)
    scale = torch.rand(VOCABULARY, groups) + 0.01
    zero = torch.randint(-high, high, scale.shape).float() + (0.37 if zeros == "fractions" else 0)
    return QuantizedWeight(codes, scale, zero if zeros else None, (VOCABULARY,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("scheme", "bits", "group", "zeros"),
    [
        ("w8a16", 8, 0, ""),
        ("w8a16", 8, 32, ""),
        ("w8a16", 8, 0, "integers"),
        ("w8a8-dynamic", 8, 0, ""),
        ("w4a16", 4, 0, ""),
        ("w4a16", 4, 64, "integers"),
        ("w4a16", 4, 32, "fractions"),  # as GGUF's Q4_1
        ("w4a8", 4, 64, ""),
    ],
)
def test_rows_and_tied_product(scheme, bits, group, zeros, dtype):
    weight = made(bits, group, zeros)
    on_device = QuantizedWeight(
        weight.values.npu(), weight.scale.npu(), None if weight.zero is None else weight.zero.npu(), weight.shards
    )
    table, layer = method(scheme, EMBEDDING)(), torch.nn.Module()
    for name, tensor in table.pack(on_device, shape(dtype)).items():
        layer.register_buffer(name, tensor)
    exact = scheme == "w8a8-dynamic"  # which keeps its scales in float32
    scale = (weight.scale if exact else weight.scale.to(dtype)).double()
    zero = torch.zeros_like(scale) if weight.zero is None else weight.zero.to(dtype).double()
    spread = HIDDEN // scale.shape[1]
    want = (weight.values.double() - zero.repeat_interleave(spread, 1)) * scale.repeat_interleave(spread, 1)
    for ids in (
        torch.tensor([5, 295, 0, 5]),
        torch.tensor([7], dtype=torch.int32),
        torch.tensor([], dtype=torch.int64),
    ):
        got = table.rows(layer, ids.npu()).cpu()
        assert got.dtype == dtype and torch.equal(got, want[ids.long()].to(dtype))
    assert layer.packed.nbytes == VOCABULARY * HIDDEN * bits // 8
    x = torch.randn(5, HIDDEN).to(dtype)
    got = multiply(x.npu(), table.projection(layer, None)).cpu()
    compare(x, want, got, "token" if exact else "")
    assert table.projection(layer, None).weight.data_ptr() == layer.packed.data_ptr()  # no second table
    head = table.int8_head(layer)
    got = multiply(x.npu(), head).cpu()
    if bits == 8 and not group and not zeros:
        compare(x, want, got, "token")
        assert head.weight.data_ptr() == layer.packed.data_ptr()
    else:
        assert (got.double() - x.double() @ want.t()).norm() < 0.02 * (x.double() @ want.t()).norm()


@pytest.mark.parametrize(
    ("scheme", "weight", "hidden", "words"),
    [
        ("w8a8-dynamic", made(8, 32, ""), HIDDEN, "embed_tokens: W8A8 tables take symmetric"),
        ("w4a16", made(4, 0, "", 100), 100, "embed_tokens: 4-bit tables need a multiple of 8 features, not 100"),
        ("w4a16", made(4, 16, ""), HIDDEN, "embed_tokens: groups must be a multiple of 32 features, not 16"),
    ],
)
def test_refused_tables(scheme, weight, hidden, words):
    with pytest.raises(ValueError, match=words):
        method(scheme, EMBEDDING)().pack(weight, shape(hidden=hidden))


def test_a_scheme_tables_have_not():
    with pytest.raises(
        ValueError, match=r"embed: aloft has no w4a4 quantization of embedding layers; there are: w4a16, "
    ):
        method("w4a4", EMBEDDING, "embed")


def small(model, folder, tied):
    """The tiny model with a vocabulary that is no multiple of 64, and one table for both ends where ``tied``."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": VOCABULARY, "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    held = checkpoints.tensors(model)
    for name in (f"{TABLE}.weight", "lm_head.weight"):
        held[name] = held[name][:VOCABULARY].contiguous()
    if tied:
        del held["lm_head.weight"]
        held[f"{TABLE}.weight"] /= 8  # as large as a head's would be
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    return folder


def check(folder, want, tied, activations="", **more):
    """Rows, and a tied head's product, of the engine that serves the folder, against the table in float64."""
    import inprocess
    from vllm import SamplingParams

    llm = inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80, **more)
    (answer,) = llm.generate(["The square of"], SamplingParams(max_tokens=16, ignore_eos=True), use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16
    model = inprocess.runner(llm).model
    table, head = model.model.embed_tokens, model.lm_head
    ids = torch.tensor([0, VOCABULARY - 1, 17, 17])
    got = table(ids.npu()).cpu()
    assert (got.double() - want[ids]).abs().max() <= 2.0**-7 * want.abs().max()  # scales and rows are rounded
    assert torch.equal(table(ids.int().view(2, 2).npu()).cpu().flatten(0, 1), got)
    table.quant_method.process_weights_after_loading(table)  # a reload passes here again
    assert torch.equal(table(ids.npu()).cpu(), got)
    if not tied:
        assert any(name == "weight" for name, _ in head.named_parameters())
        return llm
    assert not list(head.parameters())
    x = torch.randn(5, HIDDEN).to(torch.bfloat16)
    compare(x, want, product(head, x).cpu()[:, :VOCABULARY], activations)
    return llm


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("preset", "weights"),
    [("W8A16", {"strategy": "channel", "group_size": None}), ("W4A16", {"group_size": 64})],
)
def test_made_by_the_library(preset, weights, tied, model, tmp_path):
    """compressed-tensors' own config, tensors and packing of an Embedding; the layers in the same scheme."""
    folder = tmp_path / "out"
    write(small(model, tmp_path / "small", tied), folder, preset, weights, None, targets=("Linear", "Embedding"))
    check(folder, checkpoints.compressed(folder)[TABLE], tied)


@pytest.mark.parametrize(
    ("scheme", "form", "kind", "tied", "changes"),
    [
        ("w8a8-dynamic", "modelslim", "int8", True, {}),
        ("w4a16", "modelslim", "int4", True, {"group": 32}),
        ("float", "compressed-tensors", "int4", True, {}),
        ("w8a16", "compressed-tensors", "int8", False, {}),
        ("w4a8", "modelslim", "int4", True, {"group": 0}),
    ],
)
def test_written(scheme, form, kind, tied, changes, model, text, tmp_path):
    from aloft.quantizer import Settings, quantize

    folder = tmp_path / "out"
    settings = Settings(scheme, form, "minmax", samples=4, length=64, embedding=kind, **changes)
    result = quantize(small(model, tmp_path / "small", tied), folder, settings, text)
    assert result.layers[-1]["layer"] == TABLE and result.layers[-1]["error"] < (0.02 if kind == "int4" else 1e-4)
    values = checkpoints.modelslim(folder) if form == "modelslim" else checkpoints.compressed(folder)
    want = values[TABLE]
    before = checkpoints.tensors(tmp_path / "small")[f"{TABLE}.weight"].double()
    assert (want - before).norm() < (0.15 if kind == "int4" else 0.01) * before.norm()
    llm = check(folder, want, tied)
    assert len(values) == (15 if scheme != "float" else 1)
    if scheme == "w8a8-dynamic":  # the head in int8, of the same codes
        check(folder, want, tied, "token", additional_config={"lm_head": "int8"})
    del llm


@pytest.mark.parametrize("packing", [2, 1])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_gguf(kind, packing, model, tmp_path, monkeypatch):
    """A tied table keeps its codes; the head has a float copy, or none where nothing is to be packed."""
    import test_gguf

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = test_gguf.beside(small(model, tmp_path / "small", True), tmp_path / "served")
    values = test_gguf.write(tmp_path / "small", folder / "tiny.gguf", "Q8_0", {"token_embd.weight": kind})
    llm = check(folder, values[TABLE], True, additional_config={"weight_nz_mode": packing})
    head = next(each for name, each in _modules(llm) if name == "lm_head").quant_method.head
    assert (head is not None) == (packing == 2)
    table = next(each for name, each in _modules(llm) if name.endswith("embed_tokens"))
    assert table.packed.nbytes == (VOCABULARY + 63) // 64 * 64 * HIDDEN * (8 if kind == "Q8_0" else 4) // 8


def _modules(llm):
    import inprocess

    return inprocess.runner(llm).model.named_modules()


def test_a_quantized_head_needs_its_own_table(model, tmp_path):
    """config.json ties the head to a float table, the description quantizes it."""
    import inprocess

    folder = tmp_path / "out"
    write(small(model, tmp_path / "small", False), folder, "W8A8", {}, {}, ignore=())
    held = {name: tensor for name, tensor in checkpoints.tensors(folder).items() if not name.startswith("lm_head.")}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"lm_head: the description says w8a8-dynamic, but config\.json ties the head"):
        inprocess.start(folder, max_num_seqs=2, num_gpu_blocks_override=80)


def test_the_option_names_what_it_takes(model, tmp_path):
    from aloft.quantizer import Settings, quantize

    with pytest.raises(ValueError, match="--embedding must be one of auto, int8, int4, not 'int2'"):
        quantize(model, tmp_path / "out", Settings("w8a16", embedding="int2"))
