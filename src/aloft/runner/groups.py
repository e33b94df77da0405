"""The KV cache groups of an engine: layers with one block table, and what each layer is told about a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig

from aloft.attention import fp8
from aloft.attention.metadata import AloftAttentionMetadata, AloftMetadataBuilder
from aloft.runner import kv


class CacheGroups:
    """Builds the metadata of a step, group by group, and hands it to the layers."""

    def __init__(
        self,
        config: KVCacheConfig,
        shared: dict[str, str],
        layers: dict[str, Any],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        """shared: layers that share another one's cache, and that one."""
        self._builders: list[AloftMetadataBuilder] = []
        self._names: list[list[str]] = []  # layers of every group
        place: dict[str, int] = {}
        for index, group in enumerate(config.kv_cache_groups):
            spec = kv.layer_spec(group.kv_cache_spec, group.layer_names[0])
            owners = [name for name in group.layer_names if not name.endswith(fp8.RECENT)]
            names = [*owners, *(name for name, target in shared.items() if target in owners)]
            self._builders.append(AloftMetadataBuilder(spec, names, vllm_config, device))
            self._names.append([name for name in names if not kv.fp8_window(layers[name])])
            place |= dict.fromkeys((*group.layer_names, *names), index)
        pairs: dict[tuple[int, int], list[str]] = {}
        for name, index in place.items():
            if name in layers and kv.fp8_window(layers[name]):
                recent = place[shared.get(name, name) + fp8.RECENT]
                pairs.setdefault((index, recent), []).append(name)
        # group, that of the newest tokens, layers
        self._with_recent = [(*groups, names) for groups, names in pairs.items()]

    def metadata(self, build: Callable[[AloftMetadataBuilder, int], AloftAttentionMetadata]) -> dict[str, Any]:
        """What every layer is told. build: of a group's builder and number."""
        built = [build(builder, index) for index, builder in enumerate(self._builders)]
        made: dict[str, Any] = {}
        for names, own in zip(self._names, built, strict=True):
            made.update(dict.fromkeys(names, own))
        for group, recent, names in self._with_recent:
            made.update(dict.fromkeys(names, dataclasses.replace(built[group], recent=built[recent])))
        return made

    @staticmethod
    def slots(metadata: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Slots of the step's tokens, by layer."""
        return {name: own.slot_mapping for name, own in metadata.items()}
