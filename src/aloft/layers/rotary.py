"""Rotary position embedding on ``npu_rotary_mul``, with the tables looked up once per step.

All layers of a model share one rotary module (two where local and global layers differ), so the tables of a step are
kept in vLLM's forward context under the module.
"""

from __future__ import annotations

import torch
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.model_executor.layers.rotary_embedding import (
    DynamicNTKAlphaRotaryEmbedding,
    DynamicNTKScalingRotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    NTKScalingRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)


class RotaryMixin:
    """forward_oot for every subclass of RotaryEmbedding whose cache is ``[max_position, rotary_dim]``, cos then sin."""

    head_size: int
    rotary_dim: int
    is_neox_style: bool

    def forward_oot(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """query ``[T, Hq * D]``, key ``[T, Hkv * D]`` or None; returns rotated tensors of the same shapes."""
        cos, sin = self.tables(positions, query)
        return self._rotate(query, cos, sin), None if key is None else self._rotate(key, cos, sin)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], -1, self.head_size)
        mode = "half" if self.is_neox_style else "interleave"
        if self.rotary_dim == self.head_size:
            return torch.ops.npu.npu_rotary_mul(heads, cos, sin, mode).view(x.shape)
        turned = torch.ops.npu.npu_rotary_mul(heads[..., : self.rotary_dim].contiguous(), cos, sin, mode)
        return torch.cat((turned, heads[..., self.rotary_dim :]), dim=-1).view(x.shape)

    def tables(self, positions: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step, ``[T, 1, rotary_dim]`` in the query's dtype."""
        if not is_forward_context_available():
            return self._look_up(positions, query)
        kept = get_forward_context().additional_kwargs
        key = f"aloft.rotary.{id(self)}"
        entry = kept.get(key)
        if entry is None or entry[0] is not positions:
            entry = (positions, self._look_up(positions, query))
            kept[key] = entry
        return entry[1]

    def pair_tables(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step with one entry a pair, ``[T, 1, rotary_dim / 2]`` in the dtype of ``like``."""
        kept = get_forward_context().additional_kwargs
        key = f"aloft.rotary.pairs.{id(self)}"
        entry = kept.get(key)
        if entry is None or entry[0] is not positions:
            cache = self._match_cos_sin_cache_dtype(like)  # type: ignore[attr-defined]
            entry = (positions, cache.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, dim=-1))
            kept[key] = entry
        return entry[1]

    def _look_up(self, positions: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = self._match_cos_sin_cache_dtype(query)  # type: ignore[attr-defined]
        cos, sin = cache.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, dim=-1)
        if self.is_neox_style:
            return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)


def replacements() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    originals = (
        RotaryEmbedding,
        Llama3RotaryEmbedding,
        LinearScalingRotaryEmbedding,
        NTKScalingRotaryEmbedding,
        DynamicNTKScalingRotaryEmbedding,
        DynamicNTKAlphaRotaryEmbedding,
        YaRNScalingRotaryEmbedding,
    )
    return {original: _REPLACED.setdefault(original, _derive(original)) for original in originals}


_REPLACED: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _derive(original: type[torch.nn.Module]) -> type[torch.nn.Module]:
    return type(f"Aloft{original.__name__}", (RotaryMixin, original), {"__module__": __name__})
