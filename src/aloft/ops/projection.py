"""A projection of a decoder layer as the fused operators take it: a weight of the model's dtype, or a quantized one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: which operators a projection stands for: a product of floats; npu_dynamic_quant and npu_quant_matmul;
#: npu_weight_quant_batchmatmul
FLOAT, DYNAMIC, WEIGHT_ONLY = 0, 1, 2
#: entries of a projection in an operator's ``scales`` and in its ``schemes``
EACH = 2


@dataclass(frozen=True, slots=True)
class Projection:
    """``y = x @ weight + bias``.

    weight: ``[in, out]``, FRACTAL_NZ or ND: of the model's dtype, int8, or int4 packed in int32 ``[in, out / 8]``.
    bias: ``[out]`` or None. scheme: one of the above. group: inputs that share a scale, 0 for all of them.
    scale: ``[out]``, or with groups ``[groups, out]``; for dynamic products float32, or of 4-bit weights int64 as
    npu_trans_quant_param makes it (fused operators take either); of the model's dtype for weight-only ones.
    offset: like scale, added to the weights; weight-only products.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scheme: int = FLOAT
    group: int = 0
    scale: torch.Tensor | None = None
    offset: torch.Tensor | None = None


def given(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: Sequence[torch.Tensor | None] | None,
    schemes: Sequence[int],
    place: int = 0,
) -> Projection:
    """The projection at ``place`` among those of an operator's arguments."""
    if not schemes or scales is None:
        return Projection(weight, bias)
    first = EACH * place
    return Projection(weight, bias, schemes[first], schemes[first + 1], scales[first], scales[first + 1])


def described(projections: Sequence[Projection]) -> tuple[list[torch.Tensor | None], list[int]]:
    """The arguments ``scales`` and ``schemes`` for these projections: empty where none is quantized."""
    if all(each.scheme == FLOAT for each in projections):
        return [], []
    scales = [part for each in projections for part in (each.scale, each.offset)]
    return scales, [part for each in projections for part in (each.scheme, each.group)]


def multiply(x: torch.Tensor, projection: Projection) -> torch.Tensor:
    """x ``[T, in]`` times the projection, in operators every runtime has."""
    weight, bias, scale, group = projection.weight, projection.bias, projection.scale, projection.group
    if projection.scheme == FLOAT:
        return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
    if projection.scheme == DYNAMIC:
        codes, token_scale = torch.ops.npu.npu_dynamic_quant(x)
        if weight.dtype == torch.int32 and scale is not None and scale.dtype == torch.float32:
            scale = torch.ops.npu.npu_trans_quant_param(scale.flatten(), round_mode=1).view(scale.shape)
        made = torch.ops.npu.npu_quant_matmul(
            codes,
            weight,
            scale,
            pertoken_scale=token_scale,
            bias=None if group else bias,  # products with scales by group take none
            output_dtype=x.dtype,
            group_sizes=[0, 0, group] if group else None,
        )
        return made if bias is None or not group else made + bias.to(x.dtype)
    if bias is not None and x.dtype == torch.bfloat16:
        bias = bias.float()
    return torch.ops.npu.npu_weight_quant_batchmatmul(
        x, weight, scale, antiquant_offset=projection.offset, bias=bias, antiquant_group_size=group
    )
