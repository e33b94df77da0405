"""The fused operators of a decoder layer, and what they mean in operators every runtime has.

``aloft::attention_input`` goes from hidden states to the query, with keys and values in the cache; ``aloft::mlp_block``
from the result of attention to the next layer's hidden states; ``aloft::gated_matmul`` is the gate and up projection
with SwiGLU, a stage of ``mlp_block`` by itself; ``aloft::decoder_stack`` is all layers of a model with their attention.
The virtual NPU has them as single operators; elsewhere ``ensure()`` registers the composites below. Both give the same
bits: an operator rounds where the composite stores.

Weights are of the model's dtype, or quantized as ``aloft.ops.projection`` says: ``scales`` and ``schemes`` then hold
what it takes of each projection, in the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aloft.ops import paged_attention
from aloft.ops.projection import EACH, given, multiply

SCHEMAS = (
    "attention_input(Tensor hidden, Tensor? residual, Tensor norm_weight, float norm_eps, Tensor qkv_weight, Tensor? "
    "qkv_bias, Tensor cos, Tensor sin, bool interleaved, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
    "slot_mapping, int num_heads, Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, float qk_norm_eps=1e-06, "
    "int block_rows=0, Tensor?[]? scales=None, int[] schemes=[]) -> (Tensor, Tensor)",
    "mlp_block(Tensor attention, Tensor residual, Tensor o_weight, Tensor? o_bias, Tensor norm_weight, float norm_eps, "
    "Tensor gate_up_weight, Tensor? gate_up_bias, Tensor down_weight, Tensor? down_bias, int block_rows=0, "
    "Tensor?[]? scales=None, int[] schemes=[]) -> (Tensor, Tensor)",
    "gated_matmul(Tensor x, Tensor gate_up_weight, Tensor? gate_up_bias=None, Tensor?[]? scales=None, int[] "
    "schemes=[]) -> Tensor",
    "decoder_stack(Tensor hidden, Tensor?[] weights, float[] epsilons, Tensor cos, Tensor sin, bool interleaved, "
    "Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor slot_mapping, Tensor block_table, int[] "
    "cu_query_lens, int[] kv_lens, int num_heads, float scale, int[] window_left, float soft_cap=0., int[2] "
    "block_rows=0, Tensor?[]? scales=None, int[] schemes=[]) -> (Tensor, Tensor)",
)
#: entries of ``weights`` and ``epsilons`` that ``decoder_stack`` takes of each layer, and its projections
STACK_WEIGHTS, STACK_EPSILONS, STACK_PROJECTIONS = 12, 3, 4
_library: torch.library.Library | None = None


def attention_input(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_eps: float,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    num_heads: int,
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    qk_norm_eps: float = 1e-6,
    block_rows: int = 0,
    scales: Sequence[torch.Tensor | None] | None = None,
    schemes: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Everything of a decoder layer in front of its attention.

    Args:
        hidden: ``[T, W]``, float32, float16 or bfloat16; every other tensor but the slots has its dtype.
        residual: ``[T, W]``, added to hidden first; None in front of the first layer.
        norm_weight, norm_eps: of the RMS norm, ``[W]``.
        qkv_weight: ``[W, (num_heads + 2 Hkv) D]``, FRACTAL_NZ or ND: queries, keys and values side by side.
        qkv_bias: ``[(num_heads + 2 Hkv) D]`` or None.
        cos, sin: tables of the step, ``[T, 1, R / 2]``, one entry a pair: the first R <= D elements of a head turn.
        interleaved: pairs are ``2 i, 2 i + 1`` instead of ``i, i + R / 2``.
        key_cache, value_cache: ``[nb, bs, Hkv, D]``, written.
        slot_mapping: int32 or int64 ``[T]``, ``block * bs + offset``; a token with a negative slot is not written.
        q_norm_weight, k_norm_weight, qk_norm_eps: RMS norms of every query and key head, ``[D]``, or None.
        block_rows: tokens handled at a time, 0 for all; bounds the memory in between, does not change the result.
        scales, schemes: of the QKV projection where it is quantized.

    Returns:
        The query ``[T, num_heads, D]``, and hidden + residual ``[T, W]`` (empty without a residual).
    """
    if residual is None:
        normed, total = torch.ops.npu.npu_rms_norm(hidden, norm_weight, norm_eps)[0], hidden.new_empty(0)
    else:
        normed, _, total = torch.ops.npu.npu_add_rms_norm(hidden, residual, norm_weight, norm_eps)
    kv_heads, size = key_cache.shape[2:]
    projection = given(qkv_weight, qkv_bias, scales, schemes)
    queries = []
    for begin in range(0, hidden.shape[0], block_rows or max(1, hidden.shape[0])):
        rows = slice(begin, begin + (block_rows or hidden.shape[0]))
        qkv = multiply(normed[rows], projection).unflatten(-1, (-1, size))
        query, key, value = qkv.split((num_heads, kv_heads, kv_heads), dim=1)
        if q_norm_weight is not None:
            query = torch.ops.npu.npu_rms_norm(query.contiguous(), q_norm_weight, qk_norm_eps)[0]
        if k_norm_weight is not None:
            key = torch.ops.npu.npu_rms_norm(key.contiguous(), k_norm_weight, qk_norm_eps)[0]
        tables = _table(cos[rows], interleaved), _table(sin[rows], interleaved)
        queries.append(_rotated(query, tables, interleaved))
        write_cache(_rotated(key, tables, interleaved), value, key_cache, value_cache, slot_mapping[rows])
    made = queries[0] if len(queries) == 1 else torch.cat(queries) if queries else hidden.new_empty(0, num_heads, size)
    return made, total


def mlp_block(
    attention: torch.Tensor,
    residual: torch.Tensor,
    o_weight: torch.Tensor,
    o_bias: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_eps: float,
    gate_up_weight: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor | None,
    block_rows: int = 0,
    scales: Sequence[torch.Tensor | None] | None = None,
    schemes: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Everything of a decoder layer behind its attention.

    Args:
        attention: ``[T, Hq D]``, float32, float16 or bfloat16; every other tensor has its dtype.
        residual: ``[T, W]``.
        o_weight, o_bias: output projection, ``[Hq D, W]`` and ``[W]`` or None. Weights are FRACTAL_NZ or ND.
        norm_weight, norm_eps: of the RMS norm in front of the MLP, ``[W]``.
        gate_up_weight, gate_up_bias: ``[W, 2 I]``, gate and up side by side, and ``[2 I]`` or None.
        down_weight, down_bias: ``[I, W]`` and ``[W]`` or None.
        block_rows: tokens handled at a time, 0 for all; bounds the memory in between, does not change the result.
        scales, schemes: of the three projections where one of them is quantized.

    Returns:
        The MLP's result ``[T, W]``, and the residual the next layer adds to it ``[T, W]``.
    """
    step = block_rows or max(1, attention.shape[0])
    o = given(o_weight, o_bias, scales, schemes, 0)
    down = given(down_weight, down_bias, scales, schemes, 2)
    middle = slice(EACH, 2 * EACH)
    gate_up = (gate_up_weight, gate_up_bias, (scales or ())[middle], schemes[middle])
    parts = []
    for begin in range(0, attention.shape[0], step):
        rows = slice(begin, begin + step)
        projected = multiply(attention[rows], o)
        normed, _, total = torch.ops.npu.npu_add_rms_norm(projected, residual[rows], norm_weight, norm_eps)
        parts.append((multiply(gated_matmul(normed, *gate_up), down), total))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return torch.empty_like(residual), torch.empty_like(residual)
    return torch.cat([made for made, _ in parts]), torch.cat([total for _, total in parts])


def gated_matmul(
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    scales: Sequence[torch.Tensor | None] | None = None,
    schemes: Sequence[int] = (),
) -> torch.Tensor:
    """``silu(g) * u`` with ``[g, u] = x @ gate_up_weight + gate_up_bias``.

    A stage of ``mlp_block``, whose composite calls this function. No layer calls the operator of this name: it is there
    so that the stage, with its epilogue and its quantized weights, is checked by itself.

    x ``[T, W]``, gate_up_weight ``[W, 2 I]`` in FRACTAL_NZ or ND, gate_up_bias ``[2 I]`` or None; returns ``[T, I]``.
    scales, schemes: of the projection where it is quantized.
    """
    return torch.ops.npu.npu_swiglu(multiply(x, given(gate_up_weight, gate_up_bias, scales, schemes)), -1)


def decoder_stack(
    hidden: torch.Tensor,
    weights: Sequence[torch.Tensor | None],
    epsilons: Sequence[float],
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    key_caches: Sequence[torch.Tensor],
    value_caches: Sequence[torch.Tensor],
    slot_mapping: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: Sequence[int],
    kv_lens: Sequence[int],
    num_heads: int,
    scale: float,
    window_left: Sequence[int],
    soft_cap: float = 0.0,
    block_rows: Sequence[int] = (0, 0),
    scales: Sequence[torch.Tensor | None] | None = None,
    schemes: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """All decoder layers of a model, the first without a residual: layer by layer ``attention_input``, the attention of
    ``aloft::paged_attention`` and ``mlp_block``.

    Args:
        hidden: ``[T, W]``.
        weights: of each layer input norm, QKV weight, its bias, query norm, key norm, output weight, its bias, norm of
            the MLP, gate and up weight, its bias, down weight, its bias; None where there is none.
        epsilons: of each layer those of the input norm, the query and key norms, and the norm of the MLP.
        key_caches, value_caches, window_left: one a layer; the rest as in the operators named.
        block_rows: of ``attention_input`` and of ``mlp_block``.
        scales, schemes: of each layer's four projections, in the order of ``weights``, where one of them is quantized.

    Returns:
        What the last layer hands on: hidden states and residual, each ``[T, W]``.
    """
    paged_attention.ensure()
    residual: torch.Tensor | None = None
    for layer, (key_cache, value_cache, window) in enumerate(zip(key_caches, value_caches, window_left, strict=True)):
        own: Any = weights[STACK_WEIGHTS * layer : STACK_WEIGHTS * (layer + 1)]
        norm, qkv, qkv_bias, q_norm, k_norm, *behind = own
        first, heads, last = epsilons[STACK_EPSILONS * layer : STACK_EPSILONS * (layer + 1)]
        begin, end = (EACH * STACK_PROJECTIONS * place for place in (layer, layer + 1))
        front, back = slice(begin, begin + EACH), slice(begin + EACH, end)
        query, total = attention_input(
            *(hidden, residual, norm, first, qkv, qkv_bias, cos, sin, interleaved, key_cache, value_cache),
            *(slot_mapping, num_heads, q_norm, k_norm, heads, block_rows[0], (scales or ())[front], schemes[front]),
        )
        attended, _ = torch.ops.aloft.paged_attention(
            *(query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, key_cache.shape[2], scale),
            *(window, soft_cap),
        )
        total = hidden if residual is None else total
        o, o_bias, mlp_norm, gate_up, gate_up_bias, down, down_bias = behind
        hidden, residual = mlp_block(
            *(attended.flatten(1), total, o, o_bias, mlp_norm, last, gate_up, gate_up_bias, down, down_bias),
            *(block_rows[1], (scales or ())[back], schemes[back]),
        )
    assert residual is not None
    return hidden, residual


def write_cache(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Copies keys and values ``[T, Hkv, D]`` to their slots. The operator takes 16-bit types; float32 goes as pairs."""
    tensors = (key.contiguous(), value.contiguous(), key_cache, value_cache)
    if key.dtype == torch.float32:
        tensors = tuple(tensor.view(torch.bfloat16) for tensor in tensors)  # type: ignore[assignment]
    torch.ops.npu.npu_scatter_pa_kv_cache(*tensors, slots, cache_mode="Norm")


def _table(pairs: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """``[T, 1, R]``, both members of a pair, of ``[T, R / 2]`` or ``[T, 1, R / 2]``."""
    pairs = pairs if pairs.dim() == 3 else pairs.unsqueeze(1)
    return pairs.repeat_interleave(2, dim=-1) if interleaved else torch.cat((pairs, pairs), dim=-1)


def _rotated(heads: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], interleaved: bool) -> torch.Tensor:
    """heads ``[T, H, D]``, cos and sin ``[T, 1, R]``."""
    mode, width = "interleave" if interleaved else "half", tables[0].shape[-1]
    if width == heads.shape[-1]:
        return torch.ops.npu.npu_rotary_mul(heads.contiguous(), *tables, mode)
    turned = torch.ops.npu.npu_rotary_mul(heads[..., :width].contiguous(), *tables, mode)
    return torch.cat((turned, heads[..., width:]), dim=-1)


def native() -> bool:
    """Whether the runtime has the fused operators as single ones."""
    return _library is None and hasattr(torch.ops.aloft, "mlp_block")


def ensure() -> None:
    """Makes the operators exist under ``torch.ops.aloft``. Idempotent; call it before the first use."""
    global _library
    if _library is not None or hasattr(torch.ops.aloft, "mlp_block"):
        return
    _library = torch.library.Library("aloft", "FRAGMENT")
    for schema, function in zip(SCHEMAS, (attention_input, mlp_block, gated_matmul, decoder_stack), strict=True):
        _library.define(schema)
        _library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
