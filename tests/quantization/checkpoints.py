"""AWQ and GPTQ checkpoints of a model, written by this file's own packing, and every format's weights in float64."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # feature kept in each nibble, the lowest first


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def _integers(weight, group, symmetric):
    """Unsigned codes [K, N], scales and zeros [G, N] of a weight [N, K]."""
    columns = weight.double().t().reshape(-1, group, weight.shape[0])
    if symmetric:
        scale = (columns.abs().amax(1) / 7).half().double()
        zero = torch.full_like(scale, 8)
    else:
        low, high = columns.amin(1).clamp(max=0), columns.amax(1).clamp(min=0)
        scale = ((high - low) / 15).half().double()
        zero = (-low / scale).round().clamp(1, 15)
    codes = (columns / scale[:, None] + zero[:, None]).round().clamp(0, 15)
    return codes.reshape(-1, weight.shape[0]).int(), scale, zero.int()


def _words(codes, dim, order=tuple(range(8))):
    pieces = codes.unflatten(dim, (-1, 8)).unbind(dim + 1)
    made = torch.zeros_like(pieces[0], dtype=torch.int64)
    for nibble, feature in enumerate(order):
        made |= pieces[feature].long() << (4 * nibble)
    return torch.where(made >= 2**31, made - 2**32, made).int().contiguous()


def grouped(model: Path, folder: Path, method: str, group: int, symmetric: bool = False, ordered: bool = False) -> dict:
    """Writes the checkpoint; returns the float64 weight of each quantized layer."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    made, values = {}, {}
    for name, tensor in tensors(model).items():
        if not name.endswith("proj.weight"):
            made[name] = tensor
            continue
        layer = name.removesuffix(".weight")
        shuffled = torch.randperm(tensor.shape[1], generator=torch.Generator().manual_seed(tensor.shape[1]))
        order = shuffled if ordered else torch.arange(tensor.shape[1])
        codes, scale, zero = _integers(tensor[:, order], group, symmetric)
        grid = (codes - zero.repeat_interleave(group, 0)).double() * scale.repeat_interleave(group, 0)
        restored = torch.argsort(order)
        values[layer] = grid[restored].t()
        made[f"{layer}.scales"] = scale.half()
        if method == "awq":
            made[f"{layer}.qweight"] = _words(codes, 1, AWQ_ORDER)
            made[f"{layer}.qzeros"] = _words(zero, 1, AWQ_ORDER)
        else:
            made[f"{layer}.qweight"] = _words(codes[restored], 0)
            made[f"{layer}.qzeros"] = _words(zero - 1, 1)
            made[f"{layer}.g_idx"] = (torch.arange(tensor.shape[1]) // group)[restored].int()
    said = {"quant_method": method, "bits": 4, "group_size": group}
    said |= {"zero_point": True, "version": "gemm"} if method == "awq" else {"sym": symmetric, "desc_act": ordered}
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": said}
    (folder / "config.json").write_text(json.dumps(config))
    return values


def modelslim(folder: Path) -> dict:
    """float64 weights of a ModelSlim folder, by its documented formula."""
    stored = tensors(folder)
    said = json.loads((folder / "quant_model_description.json").read_text())
    values = {}
    for name, kind in said.items():
        if not name.endswith(".weight") or kind == "FLOAT":
            continue
        layer = name.removesuffix(".weight")
        codes, scale = stored[name], stored[f"{layer}.weight_scale"].double()
        offset = stored[f"{layer}.weight_offset"].double()
        if kind in ("W4A16", "W4A8_DYNAMIC"):
            both = torch.stack(((codes << 4).to(torch.int8) >> 4, codes >> 4), 1)
            codes = both.reshape(-1, codes.shape[1])
        if (second := stored.get(f"{layer}.weight_scale_second")) is not None:
            scale, offset = scale * second.double(), stored[f"{layer}.weight_offset_second"].double()
        times = codes.shape[1] // scale.shape[1]
        values[layer] = (codes.double() + offset.repeat_interleave(times, 1)) * scale.repeat_interleave(times, 1)
    return values


def compressed(folder: Path) -> dict:
    """float64 weights of a compressed-tensors folder, by the format's own library."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    stored = tensors(folder)
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    groups = said["config_groups"].values()
    values = {}
    layers = {name.rpartition(".")[0] for name in stored if name.endswith("proj.weight_scale")}
    for layer in layers:
        state = {name.rpartition(".")[2]: t for name, t in stored.items() if name.rpartition(".")[0] == layer}
        (group,) = (group for group in groups if {"Linear", layer} & set(group["targets"]))
        library = BaseCompressor.get_value_from_registry(group["format"])
        values[layer] = library.decompress(state, QuantizationScheme.model_validate(group))["weight"].double()
    return values
