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


def _integers(weight, group, symmetric, bits):
    """Unsigned codes [K, N], scales and zeros [G, N] of a weight [N, K]."""
    columns = weight.double().t().reshape(-1, group, weight.shape[0])
    half, top = 2 ** (bits - 1), 2**bits - 1
    if symmetric:
        scale = (columns.abs().amax(1) / (half - 1)).half().double()
        zero = torch.full_like(scale, half)
    else:
        low, high = columns.amin(1).clamp(max=0), columns.amax(1).clamp(min=0)
        scale = ((high - low) / top).half().double()
        zero = (-low / scale).round().clamp(1, top)
    codes = (columns / scale[:, None] + zero[:, None]).round().clamp(0, top)
    return codes.reshape(-1, weight.shape[0]).int(), scale, zero.int()


def _words(codes, dim, bits=4, order=None):
    count = 32 // bits
    pieces = codes.unflatten(dim, (-1, count)).unbind(dim + 1)
    made = torch.zeros_like(pieces[0], dtype=torch.int64)
    for place, feature in enumerate(order or range(count)):
        made |= pieces[feature].long() << (bits * place)
    return torch.where(made >= 2**31, made - 2**32, made).int().contiguous()


def grouped(
    model: Path,
    folder: Path,
    method: str,
    group: int,
    symmetric: bool = False,
    ordered: bool = False,
    bits: int = 4,
    form: str = "gptq",
) -> dict:
    """Writes the checkpoint (group 0: a scale a row); returns the float64 weight of each quantized layer."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    made, values = {}, {}
    for name, tensor in tensors(model).items():
        if not name.endswith("proj.weight"):
            made[name] = tensor
            continue
        layer, size = name.removesuffix(".weight"), group or tensor.shape[1]
        shuffled = torch.randperm(tensor.shape[1], generator=torch.Generator().manual_seed(tensor.shape[1]))
        order = shuffled if ordered else torch.arange(tensor.shape[1])
        codes, scale, zero = _integers(tensor[:, order], size, symmetric, bits)
        grid = (codes - zero.repeat_interleave(size, 0)).double() * scale.repeat_interleave(size, 0)
        restored = torch.argsort(order)
        values[layer] = grid[restored].t()
        made[f"{layer}.scales"] = scale.half()
        if method == "awq":
            made[f"{layer}.qweight"] = _words(codes, 1, 4, AWQ_ORDER)
            if not symmetric:
                made[f"{layer}.qzeros"] = _words(zero, 1, 4, AWQ_ORDER)
        else:
            made[f"{layer}.qweight"] = _words(codes[restored], 0, bits)
            made[f"{layer}.qzeros"] = _words(zero - int(form == "gptq"), 1, bits)
            made[f"{layer}.g_idx"] = (torch.arange(tensor.shape[1]) // size)[restored].int()
    said = {"quant_method": method, "bits": bits, "group_size": group or -1}
    if method == "awq":
        said |= {"zero_point": not symmetric, "version": "gemm"}
    else:
        said |= {"sym": symmetric, "desc_act": ordered, "checkpoint_format": form}
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
            along = int(kind == "W4A16" and scale.shape[1] == 1)  # a scale a row: two inputs a byte, else two outputs
            both = torch.stack(((codes << 4).to(torch.int8) >> 4, codes >> 4), along + 1)
            codes = both.flatten(along, along + 1)
        if (second := stored.get(f"{layer}.weight_scale_second")) is not None:
            scale, offset = scale * second.double(), stored[f"{layer}.weight_offset_second"].double()
        times = codes.shape[1] // scale.shape[1]
        values[layer] = (codes.double() - offset.repeat_interleave(times, 1)) * scale.repeat_interleave(times, 1)
    return values


def compressed(folder: Path) -> dict:
    """float64 weights of a compressed-tensors folder, by the format's own library."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    stored = tensors(folder)
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    groups = said["config_groups"].values()
    values = {}
    layers = {
        name.rpartition(".")[0]
        for name in stored
        if name.endswith(("proj.weight_scale", "lm_head.weight_scale", "embed_tokens.weight_scale"))
    }
    for layer in layers:
        # in float64: the library gives a weight the dtype of its scale
        state = {
            name.rpartition(".")[2]: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in stored.items()
            if name.rpartition(".")[0] == layer
        }
        kind = "Embedding" if layer.endswith("embed_tokens") else "Linear"
        (group,) = (group for group in groups if {kind, layer} & set(group["targets"]))
        library = BaseCompressor.get_value_from_registry(group["format"])
        values[layer] = library.decompress(state, QuantizationScheme.model_validate(group))["weight"].double()
    return values


def int_quantized(model, folder, bits, act, group):
    """An int-quantized compressed-tensors folder of symmetric weights, one code a byte."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    made, values, top = {}, {}, 2 ** (bits - 1) - 1
    for name, tensor in tensors(model).items():
        if not name.endswith(("proj.weight", "w1.weight", "w2.weight", "w3.weight")):
            made[name] = tensor
            continue
        layer, parts = name.removesuffix(".weight"), tensor.float().reshape(len(tensor), -1, group or tensor.shape[1])
        scale = parts.abs().amax(-1) / top
        codes = (parts / scale[..., None]).round()
        values[layer] = (codes.double() * scale.double()[..., None]).reshape(tensor.shape)
        made[name], made[f"{layer}.weight_scale"] = codes.reshape(tensor.shape).to(torch.int8), scale
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel"}
    tokens = {"num_bits": act, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    said = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head", r"re:.*\.gate$", r"re:.*shared_expert_gate$"],
        "config_groups": {
            "all": {
                "targets": ["Linear"],
                "weights": weights | ({"group_size": group} if group else {}),
                "input_activations": tokens if act else None,
            }
        },
    }
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": said}
    (folder / "config.json").write_text(json.dumps(config))
    return values


def modelslim_groups(model, folder, kind, group, by_row=(), offsets=False):
    """A ModelSlim folder of codes in bytes with a scale a group, as msmodelslim lays it out; some layers a scale a row.

    by_row: last parts of the names of these. offsets: zero points too.
    """
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    bits = int(kind[1])
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    made, said = {}, {"model_quant_type": kind, "version": "1.0.0", "group_size": group}
    for name, tensor in tensors(model).items():
        layer = name.removesuffix(".weight")
        if not name.endswith("proj.weight"):
            made[name], said[name] = tensor, "FLOAT"
            continue
        alone = layer.endswith(tuple(by_row))
        parts = tensor.float().reshape(len(tensor), -1, tensor.shape[1] if alone else group)
        scale = parts.abs().amax(-1) / high
        offset = torch.zeros_like(scale)
        if offsets and not alone:
            scale = (parts.amax(-1) - parts.amin(-1)) / (high - low)
            offset = (low - parts.amin(-1) / scale).round()
        codes = (parts / scale[..., None] + offset[..., None]).round().clamp(low, high)
        made |= {name: codes.reshape(tensor.shape).to(torch.int8), f"{layer}.weight_scale": scale}
        made[f"{layer}.weight_offset"] = offset
        said |= dict.fromkeys((name, f"{layer}.weight_scale", f"{layer}.weight_offset"), kind)
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    (folder / "quant_model_description.json").write_text(json.dumps(said))
    return modelslim(folder)
