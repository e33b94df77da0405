"""All decoder layers of a model in one call, for steps that are not captured.

Between two operators of a layer the caches hold weights, not the host's code: every operator issued from Python costs
a hundred microseconds of misses there. A step of many layers therefore issues all its work from one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aloft.models.plain import Norm, Parts
from aloft.ops.projection import described


@dataclass(slots=True)
class _Bound:
    """Arguments that stay as long as the caches do."""

    first_cache: Any
    weights: list[torch.Tensor | None]
    epsilons: list[float]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    windows: list[int]
    scales: list[torch.Tensor | None]
    schemes: list[int]


class DecoderStack:
    """The layers of one list, all of them plain and alike but for their weights and windows."""

    def __init__(self, layers: Sequence[Parts]) -> None:
        self._layers = layers
        self._bound: _Bound | None = None
        self.result: torch.Tensor | None = None
        """Hidden states that all layers have been through already: the layers behind the first hand them on."""

    @staticmethod
    def suits(layers: Sequence[Parts]) -> bool:
        """Whether one call can compute these layers."""
        first = layers[0]
        heads = {
            (impl.num_heads, impl.num_kv_heads, impl.head_size, impl.scale, impl.soft_cap, impl.sinks is None)
            for impl in (parts.attention.impl for parts in layers)
        }
        if first.attention.impl.sinks is not None or any(p.attention.impl.fp8 is not None for p in layers):
            return False
        return len(heads) == 1 and all(p.rotary is first.rotary for p in layers)

    def serves(self, metadata: dict[str, Any]) -> bool:
        """Whether this step is one the call can compute: not being captured, one block table for all layers."""
        own = metadata[self._layers[0].name]
        return own.captured is None and all(metadata[parts.name] is own for parts in self._layers)

    def run(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, metadata: Any, block_rows: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """positions ``[T]``, hidden_states ``[T, W]``; returns hidden states and residual behind the last layer."""
        parts, bound = self._layers[0], self._bound
        if bound is None or bound.first_cache is not parts.attention.kv_cache:
            bound = self._bound = self._bind()
        impl = parts.attention.impl
        cos, sin = parts.rotary.pair_tables(positions, hidden_states)
        made, residual = torch.ops.aloft.decoder_stack.default(
            hidden_states,
            bound.weights,
            bound.epsilons,
            cos,
            sin,
            not parts.rotary.is_neox_style,
            bound.keys,
            bound.values,
            metadata.slot_mapping,
            metadata.block_table,
            metadata.cu_query_lens,
            metadata.kv_lens,
            impl.num_heads,
            impl.scale,
            bound.windows,
            impl.soft_cap,
            block_rows,
            bound.scales,
            bound.schemes,
        )
        self.result = made
        return made, residual

    def _bind(self) -> _Bound:
        weights: list[torch.Tensor | None] = []
        epsilons: list[float] = []
        for p in self._layers:
            weights += [p.input_norm.weight, p.qkv.weight, p.qkv.bias, _weight(p.q_norm), _weight(p.k_norm)]
            weights += [p.output.weight, p.output.bias, p.mlp_norm.weight]
            weights += [p.gate_up.weight, p.gate_up.bias, p.down.weight, p.down.bias]
            heads = p.q_norm.epsilon if p.q_norm is not None else 0.0
            epsilons += [p.input_norm.epsilon, heads, p.mlp_norm.epsilon]
        caches = [p.attention.kv_cache for p in self._layers]
        return _Bound(
            caches[0],
            weights,
            epsilons,
            [cache.key for cache in caches],
            [cache.value for cache in caches],
            [p.attention.impl.window_left for p in self._layers],
            *described([part for p in self._layers for part in (p.qkv, p.output, p.gate_up, p.down)]),
        )


def _weight(norm: Norm | None) -> torch.Tensor | None:
    return None if norm is None else norm.weight
