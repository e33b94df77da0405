"""Which decoder layers are known well enough to be computed by the fused operators, and what those need of them.

A layer is plain when every class in it is one whose forward we stand for, its weights in FRACTAL_NZ or quantized by a
scheme the operators know, on one rank. The test is for exact classes: a subclass may compute something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from aloft.attention.impl import AloftAttentionImpl
from aloft.layers.activation import AloftSiluAndMul
from aloft.layers.linear import NzLinearMethod
from aloft.layers.norm import AloftRMSNorm
from aloft.layers.rotary import RotaryMixin
from aloft.ops.projection import FLOAT, Projection
from aloft.quantization.linear import AloftQuantizedLinearMethod

_MODELS = "vllm.model_executor.models."
#: decoder layer -> its attention and its MLP; the classes are in ``aloft.compat.TOUCHED``
LAYERS = {
    f"{_MODELS}llama:LlamaDecoderLayer": (f"{_MODELS}llama:LlamaAttention", f"{_MODELS}llama:LlamaMLP"),
    f"{_MODELS}mistral:MistralDecoderLayer": (f"{_MODELS}mistral:MistralAttention", f"{_MODELS}llama:LlamaMLP"),
    f"{_MODELS}qwen2:Qwen2DecoderLayer": (f"{_MODELS}qwen2:Qwen2Attention", f"{_MODELS}qwen2:Qwen2MLP"),
    f"{_MODELS}qwen3:Qwen3DecoderLayer": (f"{_MODELS}qwen3:Qwen3Attention", f"{_MODELS}qwen2:Qwen2MLP"),
}
_ATTENTION = "vllm.model_executor.layers.attention.attention:Attention"


class NotPlain(Exception):
    """Why a layer keeps vLLM's forward."""


@dataclass(frozen=True, slots=True)
class Norm:
    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Parts:
    """What the operators take of one decoder layer."""

    input_norm: Norm
    qkv: Projection
    q_norm: Norm | None
    k_norm: Norm | None
    rotary: Any
    attention: Any  # vLLM's Attention, which owns the cache
    name: str  # of the attention, the key of its metadata
    output: Projection
    mlp_norm: Norm
    gate_up: Projection
    down: Projection


def parts_of(layer: torch.nn.Module) -> Parts:
    """The parts of a plain decoder layer.

    Raises:
        NotPlain: the layer is something else; the message says what.
    """
    kinds = LAYERS.get(_kind(layer))
    _need(kinds is not None, f"{_kind(layer)} is not a layer we know")
    found: Any = layer
    attention, mlp = found.self_attn, found.mlp
    _need((_kind(attention), _kind(mlp)) == kinds, f"{_kind(attention)} and {_kind(mlp)} in {_kind(layer)}")
    _need(getattr(found, "ada_rms_norm_t_cond", None) is None, "a norm conditioned on time")
    _need(not getattr(attention, "do_llama_4_scaling", False), "queries scaled by position")
    _need(getattr(attention, "dual_chunk_attention_config", None) is None, "dual chunk attention")
    _need(type(mlp.act_fn) is AloftSiluAndMul and _ours(mlp.act_fn), "the activation is not ours")
    rotary = attention.rotary_emb
    _need(isinstance(rotary, RotaryMixin) and _ours(rotary), f"rotary embedding {_kind(rotary)}")
    _need(rotary.head_size == attention.head_dim and rotary.rotary_dim % 2 == 0, "the width of the rotary embedding")
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    parts = Parts(
        input_norm=_norm(found.input_layernorm),
        qkv=_projection(attention.qkv_proj),
        q_norm=None if q_norm is None else _norm(q_norm),
        k_norm=None if k_norm is None else _norm(k_norm),
        rotary=rotary,
        attention=attention.attn,
        name=_attention_name(attention.attn),
        output=_projection(attention.o_proj),
        mlp_norm=_norm(found.post_attention_layernorm),
        gate_up=_projection(mlp.gate_up_proj),
        down=_projection(mlp.down_proj),
    )
    norms = [norm for norm in (parts.input_norm, parts.mlp_norm, parts.q_norm, parts.k_norm) if norm is not None]
    dtypes = {norm.weight.dtype for norm in norms}
    products = (parts.qkv, parts.output, parts.gate_up, parts.down)
    dtypes |= {part.weight.dtype for part in products if part.scheme == FLOAT}
    _need(len(dtypes) == 1, f"weights of several types: {sorted(map(str, dtypes))}")
    quantized = any(part.scheme != FLOAT for part in products)
    _need(not quantized or dtypes <= {torch.bfloat16, torch.float16}, f"quantized weights in {dtypes}")
    epsilons = {norm.epsilon for norm in (parts.q_norm, parts.k_norm) if norm is not None}
    _need(len(epsilons) < 2, "norms of query and key with different epsilons")
    return parts


def prepare(layer: Any) -> None:
    """Has the products of a plain layer hold their weights as fused operators read them, before ``parts_of``."""
    for linear in (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj):
        if type(linear.quant_method) is AloftQuantizedLinearMethod:
            linear.quant_method.scheme.fused(linear)


def _kind(module: object) -> str:
    return f"{type(module).__module__}:{type(module).__qualname__}"


def _need(condition: bool, otherwise: str) -> None:
    if not condition:
        raise NotPlain(otherwise)


def _ours(module: Any) -> bool:
    """Whether vLLM calls our forward (``custom_ops`` may turn it off)."""
    return getattr(module._forward_method, "__func__", None) is type(module).forward_oot


def _norm(norm: Any) -> Norm:
    _need(type(norm) is AloftRMSNorm and _ours(norm), f"norm {_kind(norm)}")
    _need(norm.variance_size_override is None and norm.has_weight, "a norm without weight or over a part of its rows")
    return Norm(norm.weight, norm.variance_epsilon)


def _projection(linear: Any) -> Projection:
    method = getattr(linear, "quant_method", None)
    _need(linear.tp_size == 1, f"{_kind(linear)} over several ranks")
    _need(not linear.skip_bias_add or linear.bias is None, "a bias that is added elsewhere")
    if type(method) is AloftQuantizedLinearMethod:
        made = method.scheme.projection(linear, linear.bias)
        _need(made is not None, f"{_kind(linear)} quantized in a way of its own")
        return made  # type: ignore[return-value]
    _need(type(method) is NzLinearMethod and linear.aloft_packed, f"{_kind(linear)} without FRACTAL_NZ weights")
    return Projection(linear.weight, linear.bias)


def _attention_name(attention: Any) -> str:
    _need(
        _kind(attention) == _ATTENTION and type(attention.impl) is AloftAttentionImpl, f"attention {_kind(attention)}"
    )
    impl = attention.impl
    _need(impl.cache_scales is None, "an int8 KV cache")
    _need(impl.kv_sharing_target_layer_name is None, "a shared KV cache")
    _need(attention.query_quant is None, "quantized queries")
    return attention.layer_name
