"""compressed-tensors: ``quantization_config`` of config.json, groups of layers chosen by name, class or pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aloft.quantization.description import LayerScheme
from aloft.quantization.formats.compressed_tensors_storage import BytesStorage, PackedStorage

NAME = "compressed-tensors"
_FORMATS = ("int-quantized", "naive-quantized", "pack-quantized", "mixed-precision")


class CompressedTensors:
    """The description of one model.

    Raises:
        ValueError: a group asks for something aloft does not serve; group and key are named.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.ignored = _Matcher(config.get("ignore") or ())
        self.groups: list[tuple[_Matcher, LayerScheme]] = []
        top = config.get("format")
        if config.get("transform_config"):
            raise ValueError(f"{NAME}: transform_config (online transforms) is not supported.")
        if config.get("sparsity_config") not in (None, {}):
            raise ValueError(f"{NAME}: sparsity_config is not supported.")
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise ValueError(f"{NAME}: config_groups must describe at least one group, not {groups!r}.")
        for name, group in groups.items():
            targets = group.get("targets") or ()
            if targets and all(target.endswith("Attention") for target in targets):
                continue  # speaks of the cache, which kv_cache_scheme describes
            self.groups.append((_Matcher(targets), _scheme(name, group, group.get("format") or top)))
        self.cache = _cache(config.get("kv_cache_scheme"))

    def names(self) -> set[str]:
        """Layer names among the targets."""
        return {
            name for matcher in (self.ignored, *(of for of, _ in self.groups)) for name in matcher.names if "." in name
        }

    def rename(self, mapped: Mapping[str, str]) -> None:
        self.ignored.rename(mapped)
        for targets, _ in self.groups:
            targets.rename(mapped)

    def linear(self, name: str, shards: Sequence[str]) -> LayerScheme | None:
        found = {shard: self._find(shard, "Linear") for shard in shards}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{shard} {scheme.name if scheme else 'FLOAT'}" for shard, scheme in found.items())
            raise ValueError(f"{NAME}: layer {name} is one matrix product, but its parts differ: {told}.")
        return next(iter(found.values()))

    def embedding(self, name: str) -> LayerScheme | None:
        return self._find(name, "Embedding")

    def kv_cache(self, name: str) -> LayerScheme | None:
        return self.cache

    def _find(self, name: str, kind: str) -> LayerScheme | None:
        if self.ignored.matches(name, kind):
            return None
        # a group that names the layer goes before one that names its class
        for by_class in (False, True):
            for targets, scheme in self.groups:
                if targets.matches_class(kind) if by_class else targets.matches_name(name):
                    return scheme
        return None


class _Matcher:
    """Targets: a layer's name or its end, a class, or ``re:pattern``."""

    def __init__(self, targets: Sequence[str]) -> None:
        self.patterns = [re.compile(target[3:]) for target in targets if target.startswith("re:")]
        self.names = {target for target in targets if not target.startswith("re:")}

    def rename(self, mapped: Mapping[str, str]) -> None:
        self.names = {mapped.get(name, name) for name in self.names}

    def matches_name(self, name: str) -> bool:
        return name in self.names or any(pattern.match(name) for pattern in self.patterns)

    def matches_class(self, kind: str) -> bool:
        return kind in self.names

    def matches(self, name: str, kind: str) -> bool:
        return self.matches_name(name) or self.matches_class(kind)


def _scheme(group: str, content: Mapping[str, Any], form: str | None) -> LayerScheme:
    weights, activations = content.get("weights"), content.get("input_activations")
    where = f"{NAME}: config_groups.{group}"
    if form not in _FORMATS:
        raise ValueError(f"{where}: format {form!r} is not supported; supported are {', '.join(_FORMATS)}.")
    if content.get("output_activations"):
        raise ValueError(f"{where}: output_activations are not supported.")
    if not isinstance(weights, Mapping):
        raise ValueError(f"{where}: weights are not described.")
    if weights.get("type", "int") != "int":
        raise ValueError(
            f"{where}: weights.type {weights.get('type')!r}: the device has no FP8 arithmetic; only int is supported."
        )
    bits, strategy = weights.get("num_bits"), weights.get("strategy") or "tensor"
    if bits not in (4, 8):
        raise ValueError(f"{where}: weights.num_bits must be 4 or 8, not {bits!r}.")
    if strategy not in ("tensor", "channel", "group"):
        raise ValueError(f"{where}: weights.strategy must be tensor, channel or group, not {strategy!r}.")
    if weights.get("dynamic"):
        raise ValueError(f"{where}: weights.dynamic must be false.")
    size = int(weights.get("group_size") or 0) if strategy == "group" else 0
    symmetric = weights.get("symmetric", True)
    ordered = weights.get("actorder") in ("group", True)
    packed = form == "pack-quantized" or (form == "mixed-precision" and bits == 4 and not activations)
    if activations is None:
        name = "w8a16" if bits == 8 else "w4a16"
        if bits == 8 and size:
            raise ValueError(f"{where}: 8-bit weights with groups are not supported.")
    else:
        name = _activations(where, bits, activations)
        if not symmetric:
            raise ValueError(f"{where}: weights.symmetric must be true beside quantized activations.")
    static = name == "w8a8-static"
    if packed:
        return LayerScheme(name, PackedStorage(bits, size, symmetric, ordered, static))
    if ordered:
        raise ValueError(f"{where}: weights.actorder needs the format pack-quantized.")
    return LayerScheme(
        name,
        BytesStorage(size, symmetric, static, bool((activations or {}).get("symmetric", True)), strategy == "tensor"),
    )


def _activations(where: str, bits: int, content: Mapping[str, Any]) -> str:
    if content.get("type", "int") != "int" or content.get("num_bits") not in (4, 8):
        raise ValueError(f"{where}: input_activations must be int with num_bits 4 or 8, not {dict(content)!r}.")
    strategy, dynamic = content.get("strategy") or "tensor", bool(content.get("dynamic"))
    width = content["num_bits"]
    if dynamic and strategy == "token" and content.get("symmetric", True):
        names = {(8, 8): "w8a8-dynamic", (4, 8): "w4a8", (4, 4): "w4a4"}
        if (bits, width) in names:
            return names[bits, width]
    elif not dynamic and strategy == "tensor" and (bits, width) == (8, 8):
        return "w8a8-static"
    raise ValueError(
        f"{where}: input_activations of {width} bits, strategy {strategy!r}, dynamic {dynamic}, symmetric "
        f"{content.get('symmetric', True)} beside {bits}-bit weights are not supported: use symmetric dynamic per "
        "token, or static per tensor for 8 bits."
    )


def _cache(content: Mapping[str, Any] | None) -> LayerScheme | None:
    if content is None:
        return None
    raise ValueError(f"{NAME}: kv_cache_scheme {dict(content)!r} is not supported.")
