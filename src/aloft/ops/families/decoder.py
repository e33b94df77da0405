"""References and operands shared by the contracts of the fused operators of a decoder layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aloft.ops import attention
from aloft.ops.contract import Tolerance
from aloft.ops.decoder_layer import STACK_EPSILONS, STACK_WEIGHTS
from aloft.ops.generate import Maker
from aloft.ops.products import ND, NZ

LIMITS = (
    "float32, float16 or bfloat16, all tensors alike; every operator inside rounds its result to that dtype: the bits "
    "are those of the operators one after the other",
    "weights [in, out] in ND (any strides) or, 16-bit, FRACTAL_NZ; all other tensors contiguous",
    "block_rows bounds the memory in between and does not change the result",
)


def tolerance(stages: int) -> dict[torch.dtype | tuple[torch.dtype, int], Tolerance]:
    """Of sums whose terms were rounded in `stages` products before; all values are near 1, weights near 1/sqrt(k)."""
    why = f"{stages} products of rounded values, terms of unlike sign: the error is of the terms, not of their sum"
    units = {torch.float32: 2.0**-20, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
    return {dtype: Tolerance(2 * unit, 3 * stages * unit, why) for dtype, unit in units.items()}


def rms(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x @ weight if bias is None else x @ weight + bias


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """heads `[T, H, D]`, tables `[T, R / 2]` or `[T, 1, R / 2]`."""
    width = 2 * cos.shape[-1]
    cos, sin = (
        table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)
        for table in (cos.reshape(cos.shape[0], 1, width // 2), sin.reshape(sin.shape[0], 1, width // 2))
    )
    x, rest = heads[..., :width], heads[..., width:]
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    return torch.cat((x * cos + turned * sin, rest), -1)


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
) -> tuple[torch.Tensor, torch.Tensor]:
    total = hidden if residual is None else hidden + residual
    kv_heads, size = key_cache.shape[2:]
    made = product(rms(total, norm_weight, norm_eps), qkv_weight, qkv_bias).unflatten(-1, (-1, size))
    query, key, value = made.split((num_heads, kv_heads, kv_heads), dim=1)
    query = query if q_norm_weight is None else rms(query, q_norm_weight, qk_norm_eps)
    key = key if k_norm_weight is None else rms(key, k_norm_weight, qk_norm_eps)
    kept = slot_mapping >= 0
    for cache, rows in ((key_cache, rotate(key, cos, sin, interleaved)), (value_cache, value)):
        cache.flatten(0, 1)[slot_mapping[kept].long()] = rows[kept]
    return rotate(query, cos, sin, interleaved), total if residual is not None else hidden.new_empty(0)


def gated_matmul(
    x: torch.Tensor, gate_up_weight: torch.Tensor, gate_up_bias: torch.Tensor | None = None
) -> torch.Tensor:
    gate, up = product(x, gate_up_weight, gate_up_bias).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def mlp_block(
    attended: torch.Tensor,
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
) -> tuple[torch.Tensor, torch.Tensor]:
    total = product(attended, o_weight, o_bias) + residual
    normed = rms(total, norm_weight, norm_eps)
    return product(gated_matmul(normed, gate_up_weight, gate_up_bias), down_weight, down_bias), total


def decoder_stack(
    hidden: torch.Tensor,
    weights: Sequence[Any],
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
) -> tuple[torch.Tensor, torch.Tensor]:
    residual: torch.Tensor | None = None
    for layer, window in enumerate(window_left):
        norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, *mlp = weights[STACK_WEIGHTS * layer :][
            :STACK_WEIGHTS
        ]
        first, heads, last = epsilons[STACK_EPSILONS * layer :][:STACK_EPSILONS]
        key, value = key_caches[layer], value_caches[layer]
        query, total = attention_input(
            *(hidden, residual, norm, first, qkv, qkv_bias, cos, sin, interleaved, key, value, slot_mapping, num_heads),
            *(q_norm, k_norm, heads),
        )
        attended, _ = attention.paged(
            *(query, key, value, block_table, cu_query_lens, kv_lens, key.shape[2], scale, window, soft_cap)
        )
        total = hidden if residual is None else total
        hidden, residual = mlp_block(attended.flatten(1), total, o, o_bias, mlp_norm, last, *mlp)
    assert residual is not None
    return hidden, residual


# ---- operands -------------------------------------------------------------------------------------------------------


def weight(make: Maker, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """`[rows, cols]` whose products with values near 1 are near 1."""
    return make.normal((rows, cols), dtype, scale=rows**-0.5)


def tables(make: Maker, tokens: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """cos and sin `[tokens, 1, width / 2]`."""
    angles = make.normal((tokens, 1, width // 2), scale=3.0)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def packing(*places: int) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """A contract's `prepare`: casts the weights at `places` (of lists: entries that are matrices) to FRACTAL_NZ where a
    case says ``weight_format=29``."""

    def pack(value: Any) -> Any:
        if isinstance(value, list):
            return [pack(each) for each in value]
        matrix = isinstance(value, torch.Tensor) and value.dim() == 2
        return torch.ops.npu.npu_format_cast(value.contiguous(), NZ) if matrix else value

    def prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = dict(kwargs)
        if rest.pop("weight_format", ND) == NZ:
            config = torch.npu.config  # type: ignore[attr-defined]
            config.allow_internal_format = True
            try:
                args = tuple(pack(value) if place in places else value for place, value in enumerate(args))
            finally:
                config.allow_internal_format = False  # torch_npu's default; it offers no way to read it
        return args, rest

    return prepare


def formats(dtype: torch.dtype) -> tuple[dict[str, int], ...]:
    """Weight formats worth a case."""
    return ({},) if dtype == torch.float32 else ({}, {"weight_format": NZ})
