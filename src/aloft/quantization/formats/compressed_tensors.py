"""compressed-tensors: ``quantization_config`` of config.json, groups of layers chosen by name, class or pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aloft.quantization.description import LayerScheme
from aloft.quantization.formats.compressed_tensors_storage import BytesStorage, PackedStorage

NAME = "compressed-tensors"
_FORMATS = ("int-quantized", "naive-quantized", "pack-quantized", "mixed-precision")
#: ``actorder`` -> whether columns have groups of their own (``weight_g_idx``); the others tell of calibration only
_ORDERS = {"group": True, "dynamic": True, True: True, "weight": False, "static": False, False: False, None: False}


class CompressedTensors:
    """The description of one model.

    Raises:
        ValueError: a group asks for something aloft does not serve; group and key are named.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.ignored = _Targets()
        self.ignored.add(config.get("ignore") or (), None)
        self.targets = _Targets()
        top = config.get("format")
        if top is not None and top not in _FORMATS:
            raise ValueError(f"{NAME}: format {top!r} is not supported; supported are {', '.join(_FORMATS)}.")
        if config.get("transform_config"):
            raise ValueError(f"{NAME}: transform_config (online transforms) is not supported.")
        if config.get("sparsity_config") not in (None, {}):
            raise ValueError(f"{NAME}: sparsity_config is not supported.")
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise ValueError(f"{NAME}: config_groups must describe at least one group, not {groups!r}.")
        for name, group in groups.items():
            if not isinstance(group, Mapping):
                raise ValueError(f"{NAME}: config_groups.{name} must be an object, not {group!r}.")
            targets = group.get("targets") or ()
            if targets and all(target.endswith("Attention") for target in targets):
                continue  # speaks of the cache, which kv_cache_scheme describes
            self.targets.add(targets, _scheme(name, group, group.get("format") or top))
        self.cache = _cache(config.get("kv_cache_scheme"))

    def names(self) -> set[str]:
        """Layer names among the targets."""
        return {name for name in (*self.ignored.names, *self.targets.names) if "." in name}

    def rename(self, mapped: Mapping[str, str]) -> None:
        self.ignored.rename(mapped)
        self.targets.rename(mapped)

    def linear(self, name: str, shards: Sequence[str]) -> LayerScheme | None:
        found = {shard: self._find(shard, "Linear") for shard in shards}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{shard} {_told(scheme)}" for shard, scheme in found.items())
            raise ValueError(f"{NAME}: layer {name} is one matrix product, but its parts differ: {told}.")
        return next(iter(found.values()))

    def embedding(self, name: str) -> LayerScheme | None:
        return self._find(name, "Embedding")

    def kv_cache(self, name: str) -> LayerScheme | None:
        return self.cache

    def _find(self, name: str, kind: str) -> LayerScheme | None:
        if self.ignored.by_name(name) or self.ignored.names.get(kind):
            return None
        # a group that names the layer goes before one that names its class
        found = self.targets.by_name(name) or self.targets.names.get(kind)
        return found[1] if found else None


class _Targets:
    """Targets of groups, the first group first: a layer's name, its class, or ``re:pattern``."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[int, LayerScheme | None]] = {}
        self.patterns: list[tuple[re.Pattern[str], tuple[int, LayerScheme | None]]] = []
        self.groups = 0

    def add(self, targets: Sequence[str], scheme: LayerScheme | None) -> None:
        found = (self.groups, scheme)
        for target in targets:
            if target.startswith("re:"):
                self.patterns.append((re.compile(target[3:]), found))
            else:
                self.names.setdefault(target, found)
        self.groups += 1

    def rename(self, mapped: Mapping[str, str]) -> None:
        self.names = {mapped.get(name, name): found for name, found in self.names.items()}

    def by_name(self, name: str) -> tuple[int, LayerScheme | None] | None:
        """The first group that names the layer; patterns are tried one by one, names are looked up."""
        found = self.names.get(name)
        for pattern, of in self.patterns:
            if found is not None and found[0] <= of[0]:
                break
            if pattern.match(name):
                return of
        return found


def _told(scheme: LayerScheme | None) -> str:
    return "FLOAT" if scheme is None else f"{scheme.name} {scheme.storage}"


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
    size = weights.get("group_size") if strategy == "group" else 0
    if not isinstance(size, int) or (strategy == "group" and size <= 0):
        raise ValueError(f"{where}: weights.group_size must be a positive number, not {size!r}.")
    symmetric = weights.get("symmetric", True)
    order = weights.get("actorder")
    if order not in _ORDERS:
        raise ValueError(f"{where}: weights.actorder must be group, dynamic, weight, static or null, not {order!r}.")
    ordered = _ORDERS[order]
    packed = form == "pack-quantized" or (form == "mixed-precision" and bits == 4 and not activations)
    if activations is None:
        name = "w8a16" if bits == 8 else "w4a16"
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
    if dynamic and strategy == "token":
        symmetric = {(8, 8): "w8a8-dynamic", (4, 8): "w4a8", (4, 4): "w4a4"}
        names = symmetric if content.get("symmetric", True) else {(8, 8): "w8a8-dynamic-asymmetric"}
        if (bits, width) in names:
            return names[bits, width]
    elif not dynamic and strategy == "tensor" and (bits, width) == (8, 8):
        return "w8a8-static"
    raise ValueError(
        f"{where}: input_activations of {width} bits, strategy {strategy!r}, dynamic {dynamic}, symmetric "
        f"{content.get('symmetric', True)} beside {bits}-bit weights are not supported: use symmetric dynamic per "
        "token, or for 8 bits asymmetric dynamic per token or static per tensor."
    )


def _cache(content: Mapping[str, Any] | None) -> LayerScheme | None:
    if content is None:
        return None
    raise ValueError(f"{NAME}: kv_cache_scheme {dict(content)!r} is not supported.")
