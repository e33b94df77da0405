"""GGUF: the type of each tensor says how its layer is quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aloft.quantization.description import LayerScheme
from aloft.quantization.formats.modelslim_storage import NibbleStorage
from aloft.quantization.gguf.blocks import BITS, FLOATS, GROUP, keeps_codes
from aloft.quantization.gguf.index import Index
from aloft.quantization.gguf.names import ARCHITECTURES, FREQUENCIES, TABLES, checkpoint_name


@dataclass(frozen=True)
class BlockStorage(NibbleStorage):
    """One code a byte, as the loader unpacks them; scales of GGUF have signs, and are 0 where all weights are."""

    group: int = GROUP
    packed: bool = False
    signed_scales = True


class Gguf:
    """The description of one file. Heads are dequantized when they are loaded, whose float product is faster.

    So are embedding tables of other types than layers can have.

    Raises:
        ValueError: the architecture or a tensor's type is not served; file, tensor and type are named.
    """

    def __init__(self, index: Index) -> None:
        self.file = index.path.name
        if index.architecture not in ARCHITECTURES:
            raise ValueError(
                f"{self.file}: the architecture {index.architecture!r} is not served; served are "
                f"{', '.join(ARCHITECTURES)}."
            )
        self.types: dict[str, str] = {}
        self.tensors: dict[str, str] = {}
        for name, entry in index.tensors.items():
            if name == FREQUENCIES:
                continue
            if name not in TABLES and entry.kind not in BITS and entry.kind not in FLOATS:
                raise ValueError(
                    f"{self.file}: tensor {name} has the type {entry.kind}; served are {', '.join((*BITS, *FLOATS))}."
                )
            layer, _, part = checkpoint_name(name).rpartition(".")
            if part == "weight" and (name not in TABLES or keeps_codes(name, entry.kind)):
                self.types[layer], self.tensors[layer] = entry.kind, name

    def names(self) -> set[str]:
        return set(self.types)

    def rename(self, mapped: Mapping[str, str]) -> None:
        self.types = {mapped.get(name, name): kind for name, kind in self.types.items()}
        self.tensors = {mapped.get(name, name): tensor for name, tensor in self.tensors.items()}

    def linear(self, name: str, shards: Sequence[str]) -> LayerScheme | None:
        """Parts of a fused layer may differ in their type: the widest holds them all."""
        if name.rpartition(".")[2] == "lm_head":
            return None
        missing = [shard for shard in shards if shard not in self.types]
        if missing:
            raise ValueError(f"{self.file}: layer {name}: there is no tensor for {', '.join(missing)}.")
        kinds = {shard: self.types[shard] for shard in shards}
        floats = [shard for shard, kind in kinds.items() if kind in FLOATS]
        if len(floats) == len(kinds):
            return None
        if floats:
            told = ", ".join(f"{self.tensors[shard]} {kind}" for shard, kind in kinds.items())
            raise ValueError(f"{self.file}: layer {name} is one matrix product, but its parts differ: {told}.")
        return _scheme(*kinds.values())

    def embedding(self, name: str) -> LayerScheme | None:
        return _scheme(self.types[name]) if name in self.types else None

    def kv_cache(self, name: str) -> LayerScheme | None:
        return None


def _scheme(*kinds: str) -> LayerScheme:
    """Of one matrix whose parts have these types."""
    return LayerScheme("w8a16" if max(BITS[kind] for kind in kinds) == 8 else "w4a16", BlockStorage())
