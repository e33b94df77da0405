"""How every format's tensors split over tensor-parallel ranks: the ranks' weights side by side are the whole one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.formats.compressed_tensors_storage import BytesStorage, PackedStorage
from aloft.quantization.formats.grouped_storage import AwqStorage, GptqStorage
from aloft.quantization.formats.modelslim_storage import NibbleStorage, RotatedStorage, StaticStorage, WideStorage
from aloft.quantization.schemes.w8a8_static import StaticInt8

N, K, RANKS = 64, 128, 2
STORAGES = [
    WideStorage(),
    WideStorage(8, 32),
    StaticStorage(),
    NibbleStorage(0, packed=True),
    NibbleStorage(32, packed=True),
    NibbleStorage(32, packed=False, two_level=True),
    BytesStorage(0, symmetric=True, static=False),
    BytesStorage(32, symmetric=False, static=False),
    BytesStorage(0, symmetric=True, static=True, input_symmetric=False, per_tensor=True),
    PackedStorage(4, 32, symmetric=False, ordered=False, static=False),
    PackedStorage(4, 0, symmetric=False, ordered=False, static=False),
    PackedStorage(8, 64, symmetric=True, ordered=False, static=False),
    AwqStorage(32, zero_point=True),
    AwqStorage(64, zero_point=False),
    GptqStorage(4, 64, symmetric=False, ordered=False, shift=1),
    GptqStorage(8, 0, symmetric=False, ordered=False, shift=1),
]


@pytest.fixture
def ranks(monkeypatch):
    """Sets which rank of how many vLLM's parameters take themselves to be on."""
    now = SimpleNamespace(rank=0, size=1)
    where = "vllm.model_executor.parameter.get_tensor_model_parallel_"
    monkeypatch.setattr(f"{where}rank", lambda: now.rank)
    monkeypatch.setattr(f"{where}world_size", lambda: now.size)
    return now


def _shape(inputs=K, outputs=N, first=True):
    return LayerShape("a.proj", inputs, (outputs,), K, torch.bfloat16, lambda *_: None, first)


def _created(storage, shape):
    layer = torch.nn.Module()
    storage.create(layer, shape)
    return layer


def _checkpoint(layer):
    """Random tensors of the sizes of a layer's parameters."""
    torch.manual_seed(0)
    made = {}
    for name, parameter in layer.named_parameters():
        if parameter.is_floating_point():
            made[name] = torch.rand(parameter.shape).to(parameter.dtype) + 0.5
        else:
            limit = torch.iinfo(parameter.dtype)
            made[name] = torch.randint(limit.min, limit.max, parameter.shape, dtype=parameter.dtype)
    if "weight_offset_second" in made or "deq_scale" in made:
        made["weight_offset"].zero_()
    return made


def _loaded(storage, shape, checkpoint, axis):
    layer = _created(storage, shape)
    for name, parameter in layer.named_parameters():
        getattr(parameter, f"load_{axis}_parallel_weight")(loaded_weight=checkpoint[name])
    return layer, storage.read(layer, shape)


@pytest.mark.parametrize("storage", STORAGES, ids=[str(each) for each in STORAGES])
@pytest.mark.parametrize("axis", ["column", "row"])
def test_parts_are_the_whole(storage, axis, ranks):
    checkpoint = _checkpoint(_created(storage, _shape()))
    _, whole = _loaded(storage, _shape(), checkpoint, axis)
    ranks.size, parts = RANKS, []
    for ranks.rank in range(RANKS):
        sizes = {"inputs": K // RANKS} if axis == "row" else {"outputs": N // RANKS}
        _, part = _loaded(storage, _shape(**sizes, first=ranks.rank == 0), checkpoint, axis)
        parts.append(part)
        for name in ("input_scale", "input_offset"):  # of the activations: the same everywhere
            mine, of_all = getattr(part, name), getattr(whole, name)
            assert (mine is None) == (of_all is None) and (mine is None or torch.equal(mine, of_all))
    assert torch.equal(torch.cat([part.dequantized() for part in parts], int(axis == "row")), whole.dequantized())


@pytest.mark.parametrize("axis", ["column", "row"])
def test_a_scale_a_row_beside_groups(axis, ranks):
    """Layers with a scale a row, in a checkpoint that has groups elsewhere."""
    checkpoint = _checkpoint(_created(WideStorage(), _shape()))
    checkpoint["weight_offset"].round_()
    _, whole = _loaded(WideStorage(), _shape(), checkpoint, axis)
    _, same = _loaded(WideStorage(8, 32), _shape(), checkpoint, axis)
    assert same.group == 0 and torch.equal(same.dequantized(), whole.dequantized())
    ranks.size, parts = RANKS, []
    for ranks.rank in range(RANKS):
        sizes = {"inputs": K // RANKS} if axis == "row" else {"outputs": N // RANKS}
        parts.append(_loaded(WideStorage(8, 64), _shape(**sizes), checkpoint, axis)[1])
    assert all(part.group == 0 for part in parts)
    assert torch.equal(torch.cat([part.dequantized() for part in parts], int(axis == "row")), whole.dequantized())


def test_an_integer_bias_counts_once(ranks):
    """Of a row parallel layer it is the first rank's; of a column parallel one it goes with the outputs."""
    storage = StaticStorage()
    checkpoint = _checkpoint(_created(storage, _shape()))
    checkpoint["input_offset"] = checkpoint["input_offset"].round()
    ranks.size = RANKS
    for axis in ("row", "column"):
        made = []
        for ranks.rank in range(RANKS):
            sizes = {"inputs": K // RANKS} if axis == "row" else {"outputs": N // RANKS}
            shape = _shape(**sizes, first=ranks.rank == 0)
            weight = _loaded(storage, shape, checkpoint, axis)[1]
            made.append(StaticInt8(nz=False).pack(weight, shape)["integer_bias"])
        both = sum(made) if axis == "row" else torch.cat(made)
        assert torch.equal(both, checkpoint["quant_bias"])


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        (NibbleStorage(64, packed=True), r"groups of 64 do not divide its 32 .*sizes that keep .*: \[1, 2\]"),
        (GptqStorage(4, 128, symmetric=True, ordered=False, shift=1), r"groups of 128 .*: \[1\]"),
        (GptqStorage(4, 32, symmetric=True, ordered=True, shift=1), "desc_act cannot be split"),
        (PackedStorage(4, 32, symmetric=True, ordered=True, static=False), "activation order cannot be split"),
        (RotatedStorage(), "Kronecker transform cannot be split"),
    ],
)
def test_what_cannot_be_split_along_its_inputs(storage, words, ranks):
    ranks.size = 4
    with pytest.raises(ValueError, match=words):
        _created(storage, _shape(inputs=K // 4))
