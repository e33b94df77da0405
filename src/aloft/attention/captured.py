"""Attention inside a captured decode step: how the sequence lengths of each replay reach it.

Two ways, chosen by what the runtime offers (``additional_config`` ``graph_attention`` forces one):

* ``device``: ``aloft.decode_attention`` reads the lengths from a tensor when it runs. A replay needs nothing more.
* ``host``: the fused operator takes host integers, so each layer's call is captured as a task group, and its
  arguments are replaced before every replay. The graph waits at its first attention until that has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch
from torch_npu import npu

from aloft.errors import UnsupportedFeature
from aloft.ops import paged_attention

if TYPE_CHECKING:
    from aloft.attention.cache import KVCache
    from aloft.attention.impl import AloftAttentionImpl
    from aloft.attention.metadata import AloftAttentionMetadata


class CapturedAttention(Protocol):
    """The attention of one captured step, all layers together."""

    complete: ClassVar[bool]
    """Whether a replay needs nothing from the host: ``prepare`` does nothing, no node waits for it."""

    def attend(
        self,
        layer: AloftAttentionImpl,
        query: torch.Tensor,
        kv_cache: KVCache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
    ) -> None:
        """Captures one layer: query ``[B, Hq, D]``, one token a sequence, writes output ``[B, Hq, D]``."""

    def prepare(self, lengths: np.ndarray) -> None:
        """Called before each replay with the tokens in the cache of every sequence, this step's included."""


class DeviceLengths:
    """The operator reads the lengths itself."""

    complete: ClassVar[bool] = True

    def attend(
        self,
        layer: AloftAttentionImpl,
        query: torch.Tensor,
        kv_cache: KVCache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
    ) -> None:
        assert metadata.kv_lens_device is not None
        torch.ops.aloft.decode_attention.out(
            query,
            kv_cache.key,
            kv_cache.value,
            metadata.block_table,
            metadata.kv_lens_device,
            layer.num_kv_heads,
            layer.scale,
            layer.window_left,
            layer.soft_cap,
            layer.sinks,
            out=output,
        )

    def prepare(self, lengths: np.ndarray) -> None:
        """Nothing to do."""


class HostLengths:
    """Every layer's call is issued anew, with the lengths of the step, on a stream of its own."""

    complete: ClassVar[bool] = False

    _stream: torch.npu.Stream | None = None  # type: ignore[name-defined]

    def __init__(self) -> None:
        if HostLengths._stream is None:
            HostLengths._stream = npu.Stream()
        self.updated = npu.ExternalEvent()
        self.calls: list[tuple[object, Callable[[Sequence[int]], None]]] = []  # task group, its call

    def attend(
        self,
        layer: AloftAttentionImpl,
        query: torch.Tensor,
        kv_cache: KVCache,
        metadata: AloftAttentionMetadata,
        output: torch.Tensor,
    ) -> None:
        if not layer.fused_serves(query.dtype) and not paged_attention.native():
            raise UnsupportedFeature(
                "the attention of this model is a composite of several operators here, whose lengths are fixed once "
                "they are captured"
            )
        stream = npu.current_stream()
        if not self.calls:
            self.updated.wait(stream)
            self.updated.reset(stream)
        call = layer.call_with_lengths(_borrowed(query), kv_cache, metadata, _borrowed(output))
        npu.graph_task_group_begin(stream)
        call(metadata.kv_lens)
        self.calls.append((npu.graph_task_group_end(stream), call))

    def prepare(self, lengths: np.ndarray) -> None:
        stream = self._stream
        integers = lengths.tolist()
        with npu.stream(stream):
            for group, call in self.calls:
                npu.graph_task_update_begin(stream, group)
                call(integers)
                npu.graph_task_update_end(stream)
            if self.calls:
                self.updated.record(stream)


def _borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without keeping it: inside a graph later layers reuse it."""
    from torch_npu._C import _weak_ref_tensor

    return _weak_ref_tensor(tensor)


def chosen(kind: str, int8_cache: bool = False, fp8_cache: bool = False) -> Callable[[], CapturedAttention]:
    """The class for a ``graph_attention`` setting.

    Raises:
        ValueError: ``device`` on a runtime without the operator, or with an int8 cache, which it does not read;
            ``host`` with an fp8 cache.
    """
    if fp8_cache:
        if kind == "host":
            raise ValueError(
                "additional_config graph_attention 'host' does not go with an fp8 KV cache, whose operator reads the "
                "lengths when it runs: use 'device' or 'auto'."
            )
        return DeviceLengths
    native = paged_attention.decode_native() and not int8_cache
    if kind == "device" and not native:
        raise ValueError(
            "additional_config graph_attention 'device' needs an operator that this runtime lacks or that does not "
            "read int8 caches: use 'host'."
        )
    return DeviceLengths if kind == "device" or (kind == "auto" and native) else HostLengths
