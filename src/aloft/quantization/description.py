"""What a checkpoint says about its layers, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from aloft.quantization.weight import QuantizedWeight


class Storage(Protocol):
    """The tensors one layer has in a checkpoint: their names and shapes, and how they read.

    signed_scales: whether scales of the format may be zero or negative.
    """

    @property
    def signed_scales(self) -> bool: ...

    def create(self, layer: torch.nn.Module, shape: LayerShape) -> None:
        """Registers vLLM parameters, so that its loaders fill (and split) them."""

    def read(self, layer: torch.nn.Module, shape: LayerShape) -> QuantizedWeight:
        """What the loaded parameters mean."""


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer on this rank, and vLLM's loader of its parameters."""

    name: str
    inputs: int
    outputs: tuple[int, ...]
    total_inputs: int
    dtype: torch.dtype
    loader: Any
    is_first_rank: bool = True

    @property
    def split_inputs(self) -> bool:
        """Whether the layer is row parallel: this rank sees a part of the input features."""
        return self.inputs != self.total_inputs

    def groups(self, group: int) -> int:
        """Groups along this rank's inputs; 0 stands for one group over all of the layer's inputs.

        Raises:
            ValueError: a group would be split between ranks, or does not divide the inputs.
        """
        if group == 0:
            return 1
        if self.inputs % group:
            whole = self.total_inputs // group
            fits = [n for n in range(1, 65) if self.total_inputs % n == 0 and (self.total_inputs // n) % group == 0]
            raise ValueError(
                f"{self.name}: groups of {group} do not divide its {self.inputs} input features; "
                + (f"tensor parallel sizes that keep its {whole} groups whole: {fits}." if fits else "")
            )
        return self.inputs // group


@dataclass(frozen=True)
class LayerScheme:
    """How one layer is quantized: the scheme's name (see ``registry``) and where its tensors are."""

    name: str
    storage: Storage


class Description(Protocol):
    """Answers for one layer in constant time, whatever the checkpoint's size."""

    def linear(self, name: str, shards: Sequence[str]) -> LayerScheme | None:
        """The scheme of a linear layer or head; None for float.

        Args:
            name: the layer's name in vLLM. shards: names of the checkpoint's layers fused into it (or its own).

        Raises:
            ValueError: the shards differ, or one is not described. The layer and the key are named.
        """

    def embedding(self, name: str) -> LayerScheme | None:
        """The scheme of a vocabulary table; None for float."""

    def kv_cache(self, name: str) -> LayerScheme | None:
        """The scheme of an attention layer's cache; None for the model's dtype."""


def shard_names(name: str, packed: Mapping[str, Sequence[str]]) -> list[str]:
    """``a.b.qkv_proj`` -> ``a.b.q_proj``, ... by the model's packed modules; other names stand for themselves."""
    parent, _, last = name.rpartition(".")
    parts = packed.get(last, (last,))
    return [f"{parent}.{part}" if parent else part for part in parts]
