"""A mixture of experts in the device's operators: choice, order by expert, grouped products, weighted sums back.

Nothing reads the number of tokens an expert got on the host: the group list stays on the device, so the operators can
be captured. A row's result does not depend on the other rows, so padding rows change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from aloft.ops.projection import DYNAMIC, FLOAT, Projection

SOFTMAX, SIGMOID = "softmax", "sigmoid"
SCORING = (SOFTMAX, SIGMOID)
#: encodings of a group list
_ENDS, _COUNTS = 0, 1
#: the product with SwiGLU and quantisation in one takes at most this many columns
FUSED_COLUMNS = 10240
_NO_QUANT, _BY_ROW = -1, 1


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router's logits become experts and weights.

    top_k: experts a token goes to, of ``experts``. scoring: softmax or sigmoid of the logits. renormalize: weights are
    divided by their sum. factor: they are multiplied by it, last. bias: float32 ``[experts]``, added to the scores for
    the choice only. groups, kept: experts are in ``groups`` groups, of which the ``kept`` best are considered.
    """

    top_k: int
    experts: int
    scoring: str = SOFTMAX
    renormalize: bool = True
    factor: float = 1.0
    bias: torch.Tensor | None = None
    groups: int = 1
    kept: int = 1


def choose(logits: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """logits ``[T, experts]``: weights ``[T, top_k]``, of their dtype or float32, and int32 ids ``[T, top_k]``."""
    plain = routing.scoring == SOFTMAX and routing.bias is None and routing.groups == 1
    if plain:
        weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k_softmax_v2(
            logits, k=routing.top_k, renorm=int(routing.renormalize)
        )
        return (weights if routing.factor == 1 else weights * routing.factor), ids
    sigmoid = routing.scoring == SIGMOID
    # the operator divides sigmoids by their sum, and softmax weights never
    raw = sigmoid != routing.renormalize
    weights, ids, scores = torch.ops.npu.npu_moe_gating_top_k(
        logits.float(),
        routing.top_k,
        bias=routing.bias,
        k_group=routing.kept,
        group_count=routing.groups,
        group_select_mode=0 if routing.bias is None else 1,
        norm_type=int(sigmoid),
        out_flag=raw and sigmoid,
        routed_scaling_factor=1.0 if raw else routing.factor,
    )
    if raw:
        weights = scores.gather(1, ids.long()) if sigmoid else weights / weights.sum(-1, keepdim=True)
        weights = weights if routing.factor == 1 else weights * routing.factor
    return weights, ids


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of E experts.

    up: ``[E, hidden, 2 * width]``, the gates first, down: ``[E, width, hidden]``: FRACTAL_NZ, plain or transposed;
    float, or quantized (scales, offsets and biases with a leading ``E``). fused: both are int8 or int4 in FRACTAL_NZ,
    rows int8, up of at most ``FUSED_COLUMNS`` columns: its product, SwiGLU and quantisation are one operator.
    """

    up: Projection
    down: Projection
    fused: bool = False


def run_experts(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, experts: Experts) -> torch.Tensor:
    """``sum over j of weights[t, j] * down[e](swiglu(up[e](x[t])))`` with ``e = ids[t, j]``: ``[T, hidden]``.

    x: ``[T, hidden]``. weights, and int32 ids: ``[T, k]``.
    """
    if x.shape[0] == 0:
        return torch.empty_like(x)
    up, down, count = experts.up, experts.down, experts.up.weight.shape[0]
    integer = up.scheme == DYNAMIC
    # with int4 weights the grouped product reads counts, and only the second version of the fused one does
    int4 = torch.int32 in (up.weight.dtype, down.weight.dtype)
    kind = _ENDS if experts.fused and not int4 else _COUNTS
    rows, places, groups, row_scale = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        ids,
        active_num=ids.numel(),
        expert_num=count,
        expert_tokens_num_type=kind,
        expert_tokens_num_flag=True,
        quant_mode=_BY_ROW if integer else _NO_QUANT,
        active_expert_range=[0, count],  # torch_npu keeps the default of the first call
        row_idx_type=0,
    )
    if experts.fused and int4:
        assert up.scale is not None
        inner, inner_scale = torch.ops.npu.npu_grouped_matmul_swiglu_quant_v2(
            rows,
            [up.weight],
            [up.scale],
            row_scale,
            groups,
            weight_assist_matrix=None if up.bias is None else [up.bias],
            dequant_mode=int(up.scale.dim() == 3 and up.scale.shape[1] > 1),
            group_list_type=kind,
        )
    elif experts.fused:
        inner, inner_scale, _ = torch.ops.npu.npu_grouped_matmul_swiglu_quant(
            rows, up.weight, groups, up.scale, row_scale
        )
    else:
        inner = torch.ops.npu.npu_swiglu(grouped(rows, up, groups, kind, row_scale, x.dtype), -1)
        inner_scale = None
        if down.scheme == DYNAMIC:
            inner, inner_scale = torch.ops.npu.npu_dynamic_quant(inner)
    made = grouped(inner, down, groups, kind, inner_scale, x.dtype)
    return torch.ops.npu.npu_moe_token_unpermute(made, places, probs=weights)


def grouped(
    rows: torch.Tensor,
    projection: Projection,
    groups: torch.Tensor,
    kind: int,
    row_scale: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Rows ``[M, K]`` in the order of their experts times each expert's matrix: ``[M, N]`` of ``dtype``.

    groups: int64 ``[E]`` on the device, row ends (kind 0) or counts (1). row_scale: float32 ``[M]`` of int8 rows.
    """
    bias = None if projection.bias is None else [projection.bias]
    call: dict[str, Any] = {
        "bias": bias,
        "group_list": groups,
        "group_list_type": kind,
        "split_item": 2,
        "group_type": 0,
    }
    if projection.scheme == DYNAMIC:
        call |= {"scale": [projection.scale], "per_token_scale": [row_scale], "output_dtype": dtype}
    elif projection.scheme != FLOAT:
        call |= {"antiquant_scale": [projection.scale]}
        if projection.offset is not None:
            call |= {"antiquant_offset": [projection.offset]}
    return torch.ops.npu.npu_grouped_matmul([rows], [projection.weight], **call)[0]
