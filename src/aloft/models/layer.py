"""A decoder layer of three operator calls."""

from __future__ import annotations

from typing import Any

import torch
from vllm.forward_context import get_forward_context

from aloft.models.level import Fusion, block_rows
from aloft.models.plain import Parts
from aloft.models.stack import DecoderStack
from aloft.ops.projection import described


class FusedDecoderLayer(torch.nn.Module):
    """Stands where a plain decoder layer stood, with the same children under the same names.

    The results are those of the layer it replaces, bit for bit, at every level.
    """

    def __init__(self, layer: torch.nn.Module, parts: Parts, fusion: Fusion) -> None:
        super().__init__()
        for name, child in layer.named_children():
            self.add_module(name, child)
        self._unfused = (layer,)  # in a tuple: as a child it would double every parameter's name
        self._parts = parts
        self._level = fusion.level
        self._stack: DecoderStack | None = None
        self._last = False
        self._front = described([parts.qkv])
        self._back = described([parts.output, parts.gate_up, parts.down])
        operators = torch.ops.aloft
        self._attention_input = operators.attention_input.default
        self._mlp_block = operators.mlp_block.default

    def __getattr__(self, name: str) -> Any:
        """What else the layer had, such as ``hidden_size``, for who looks into the model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_unfused" not in self.__dict__:
                raise
            return getattr(self._unfused[0], name)

    def join(self, stack: DecoderStack, last: bool) -> None:
        """Makes this layer one of a stack, which its first layer runs where the step allows it."""
        self._stack, self._last = stack, last

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        t_cond: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """positions ``[T]``, hidden_states and residual ``[T, W]``; returns the next layer's pair.

        ``t_cond`` is what Mistral's model passes to its layers; plain ones have no use for it.
        """
        stack = self._stack
        if stack is not None and stack.result is hidden_states and residual is not None:
            if self._last:
                stack.result = None
            return hidden_states, residual
        metadata: Any = get_forward_context().attn_metadata
        if metadata is None:  # memory profiling: there is no cache yet
            return self._unfused[0](positions, hidden_states, residual)
        parts = self._parts
        attention, own = parts.attention, metadata[parts.name]
        cache, impl = attention.kv_cache, attention.impl
        rows = block_rows(self._level(hidden_states.shape[0]))
        if residual is None and stack is not None and stack.serves(metadata):
            return stack.run(positions, hidden_states, own, rows)
        cos, sin = parts.rotary.pair_tables(positions, hidden_states)
        place = impl.place(cache, own, hidden_states.dtype)
        query, total = self._attention_input(
            hidden_states,
            residual,
            parts.input_norm.weight,
            parts.input_norm.epsilon,
            parts.qkv.weight,
            parts.qkv.bias,
            cos,
            sin,
            not parts.rotary.is_neox_style,
            place.key,
            place.value,
            place.slots,
            impl.num_heads,
            None if parts.q_norm is None else parts.q_norm.weight,
            None if parts.k_norm is None else parts.k_norm.weight,
            0.0 if parts.q_norm is None else parts.q_norm.epsilon,
            rows[0],
            *self._front,
        )
        if residual is None:
            total = hidden_states
        impl.written(place, cache, own)
        attended = torch.empty_like(query)
        impl.attend(query, cache, own, attended)
        return self._mlp_block(
            attended.flatten(1),
            total,
            parts.output.weight,
            parts.output.bias,
            parts.mlp_norm.weight,
            parts.mlp_norm.epsilon,
            parts.gate_up.weight,
            parts.gate_up.bias,
            parts.down.weight,
            parts.down.bias,
            rows[1],
            *self._back,
        )
