"""ModelSlim: ``quant_model_description.json`` beside the weights, one flat object from tensor name to type string."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from aloft.quantization.description import LayerScheme, Storage
from aloft.quantization.formats import MODELSLIM_FILE as FILE
from aloft.quantization.formats import REPORT
from aloft.quantization.formats.modelslim_storage import (
    BothStorage,
    NibbleStorage,
    RotatedStorage,
    StaticStorage,
    WideStorage,
)

FLOAT = "FLOAT"
#: type string -> scheme
SCHEMES = {
    "W8A8": "w8a8-static",
    "W8A8_DYNAMIC": "w8a8-dynamic",
    "W8A8_MIX": "w8a8-dynamic",
    "W8A16": "w8a16",
    "W4A16": "w4a16",
    "W4A8_DYNAMIC": "w4a8",
    "W4A4_DYNAMIC": "w4a4",
    "W4A4_FLATQUANT_DYNAMIC": "w4a4",
}
#: type strings that exist, and why they are refused
REFUSED = {
    "W8A8S": "sparse weights of the 310P are not implemented",
    "W8A8SC": "compressed sparse weights of the 310P are not implemented",
    "W8A8FP8_DYNAMIC": "the device has no FP8 arithmetic",
    "WFP8AFP8_DYNAMIC": "the device has no FP8 arithmetic",
    "W8A8_MXFP8": "MX formats need an Ascend 950",
    "W4A8_MXFP8": "MX formats need an Ascend 950",
    "W4A8_MXFP": "MX formats need an Ascend 950",
    "W4A16_MXFP4": "MX formats need an Ascend 950",
    "W4A4_MXFP4": "MX formats need an Ascend 950",
    "W4A4_MXFP4_DUALSCALE": "MX formats need an Ascend 950",
    "W4A4_MXFP4_FLATQUANT": "MX formats need an Ascend 950",
    "FAKQuant": "quantized latent attention is not implemented",
    "INT8_DYNAMIC": "quantized sparse indexers are not implemented",
}
#: tensors of a quantized linear layer
_TENSORS = frozenset(
    (
        *("weight", "weight_scale", "weight_offset", "weight_scale_second", "weight_offset_second", "scale_bias"),
        *("input_scale", "input_offset", "deq_scale", "quant_bias", "bias"),
        *("left_trans", "right_trans", "clip_ratio"),
    )
)
_CACHE_TENSORS = frozenset(("kv_cache_scale", "kv_cache_offset"))
#: keys about the whole model
_GLOBAL = frozenset(
    (
        *("version", "model_quant_type", "group_size", "max_supported_tp", "optional", "metadata"),
        *("kv_cache_type", "kv_quant_type", "fa_quant_type", "indexer_quant_type"),
    )
)


class ModelSlim:
    """The description of one model.

    Raises:
        ValueError: an unknown key or type, or tensors of one layer that contradict each other; layer and key are named.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.group = content.get("group_size") or 0
        if not isinstance(self.group, int) or self.group < 0:
            raise ValueError(f"{FILE}: group_size must be 0 (a scale a row) or positive, not {self.group!r}.")
        self.packed = str(content.get("version", "")).split(".")[0] == "1"
        self.types: dict[str, str] = {}
        self.caches: set[str] = set()
        self.held: dict[str, set[str]] = {}  # quantized layer -> its tensors
        tensors: list[tuple[str, str, str]] = []
        for key, value in content.items():
            if key in _GLOBAL:
                continue
            layer, _, tensor = key.rpartition(".")
            if tensor in _CACHE_TENSORS:
                self.caches.add(layer.rpartition(".")[0])
            elif tensor not in _TENSORS:
                raise ValueError(f"{FILE}: layer {layer or '(none)'}: the key {key!r} is not known.")
            elif tensor == "weight":
                self.types[layer] = self._known(layer, key, value)
            else:
                tensors.append((layer, key, value))
                self.held.setdefault(layer, set()).add(tensor)
        if content.get("kv_cache_type", "C8") != "C8":
            raise ValueError(f"{FILE}: kv_cache_type must be C8, not {content['kv_cache_type']!r}.")
        for key in ("fa_quant_type", "indexer_quant_type"):
            if content.get(key, FLOAT) not in (FLOAT, "", None):
                raise ValueError(f"{FILE}: {key} {content[key]!r}: quantized attention arithmetic is not implemented.")
        for layer, key, value in tensors:
            of = self.types.get(layer)
            if of is None:
                raise ValueError(f"{FILE}: layer {layer}: there is {key!r}, but no {layer + '.weight'!r}.")
            if value != of and not (key.endswith(".bias") and value == FLOAT):
                raise ValueError(f"{FILE}: layer {layer}: {key!r} is {value!r}, but its weight is {of!r}.")
            if key.endswith(".bias") and "norm" in layer.rpartition(".")[2]:
                raise ValueError(f"{FILE}: layer {layer}: {key!r}: a bias added to a norm is not implemented.")

    @staticmethod
    def _known(layer: str, key: str, value: object) -> str:
        if not isinstance(value, str) or (value != FLOAT and value not in SCHEMES and value not in REFUSED):
            raise ValueError(
                f"{FILE}: layer {layer}: {key!r} has the type {value!r}; known are {FLOAT}, {', '.join(SCHEMES)}."
            )
        if value in REFUSED:
            raise ValueError(f"{FILE}: layer {layer}: {key!r} has the type {value}: {REFUSED[value]}.")
        return value

    def names(self) -> set[str]:
        """Layer names as the checkpoint has them."""
        return set(self.types) | self.caches

    def rename(self, mapped: Mapping[str, str]) -> None:
        """Puts vLLM's layer names in the place of the checkpoint's."""
        self.types = {mapped.get(name, name): kind for name, kind in self.types.items()}
        self.caches = {mapped.get(name, name) for name in self.caches}
        self.held = {mapped.get(name, name): tensors for name, tensors in self.held.items()}

    def linear(self, name: str, shards: Sequence[str]) -> LayerScheme | None:
        kinds = {shard: self._type(shard, name) for shard in shards}
        if len(set(kinds.values())) > 1:
            told = ", ".join(f"{shard}.weight {kind}" for shard, kind in kinds.items())
            raise ValueError(f"{FILE}: layer {name} is one matrix product, but its parts differ: {told}.")
        kind = next(iter(kinds.values()))
        held = set.intersection(*(self.held.get(shard, set()) for shard in shards))
        return None if kind == FLOAT else LayerScheme(SCHEMES[kind], self._storage(kind, held))

    def embedding(self, name: str) -> LayerScheme | None:
        kind = self.types.get(name, FLOAT)
        return None if kind == FLOAT else LayerScheme(SCHEMES[kind], self._storage(kind, self.held.get(name, set())))

    def kv_cache(self, name: str) -> LayerScheme | None:
        layer = name.removesuffix(".attn")
        return LayerScheme("kv-int8", WideStorage()) if layer in self.caches else None

    def _type(self, shard: str, name: str) -> str:
        kind = self.types.get(shard)
        if kind is None:
            if shard.rpartition(".")[2] == "lm_head":
                return FLOAT  # tied heads have no tensor of their own
            raise ValueError(f"{FILE}: layer {name}: there is no key {shard + '.weight'!r}.")
        return kind

    def _storage(self, kind: str, held: Collection[str]) -> Storage:
        """held: names of the layer's tensors."""
        if kind == "W8A8":
            return StaticStorage()
        if kind == "W8A8_MIX" and "input_scale" in held:
            return BothStorage()
        if kind == "W4A4_FLATQUANT_DYNAMIC":
            return RotatedStorage()
        if kind == "W4A16":
            return NibbleStorage(self.group, self.packed, along_inputs=self.group == 0)
        if kind == "W4A8_DYNAMIC":
            # the group size is another layer's where this one has a scale a row
            by_row = "weight_scale" in held and "weight_scale_second" not in held
            group = 0 if by_row else self.group
            return NibbleStorage(group, self.packed, two_level=group > 0, biased="scale_bias" in held)
        grouped = kind in ("W8A16", "W8A8_DYNAMIC", "W4A4_DYNAMIC")
        return WideStorage(4 if kind.startswith("W4") else 8, self.group if grouped else 0)


def find(model: str, revision: str | None = None) -> Mapping[str, Any] | None:
    """The description of a model's folder, or of a hub id already in the cache; None where there is none.

    Raises:
        ValueError: it is no JSON object.
    """
    path = Path(model) / FILE
    if not Path(model).is_dir():
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, FILE, revision=revision) if model.count("/") <= 1 else None
        if not isinstance(cached, str):
            return None
        path = Path(cached)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold one JSON object.")
    _check_age(path.with_name(REPORT))
    return content


def _check_age(report: Path) -> None:
    """Raises ValueError for 4-bit checkpoints of an early aloft, whose zero points had the other sign."""
    said = json.loads(report.read_text()) if report.is_file() else {}
    if said.get("settings", {}).get("scheme") == "w4a16" and "aloft" not in said:
        raise ValueError(
            f"{report.parent} was made by an early aloft, which wrote W4A16's offsets otherwise than ModelSlim does: "
            "make it again with aloft quantize."
        )
