"""Contract of npu_grouped_matmul_swiglu_quant, and of its second version as a form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Masked, Tolerance
from aloft.ops.contracts.npu_add_rms_norm_quant import OFF_BY_ONE
from aloft.ops.generate import Maker
from aloft.ops.quant import by_operand, near_dynamic, to_nz

_V2 = "npu::npu_grouped_matmul_swiglu_quant_v2"


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, weight, *rest = args
    cast = [to_nz(weight[0])] if isinstance(weight, list) else to_nz(weight)
    return (x, cast, *rest), kwargs


def _result(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, x_scale: torch.Tensor, stops: torch.Tensor
) -> tuple[Masked, Masked]:
    rows = torch.arange(x.shape[0])
    group = torch.searchsorted(stops, rows, right=True).clamp_max(weight.shape[0] - 1)
    f = (
        torch.einsum("rk,rkn->rn", x.double(), weight[group].double())
        * scale[group].double()
        * x_scale.double()[:, None]
    )
    left, right = f.chunk(2, -1)
    y, out = near_dynamic(left * left.sigmoid() * right)
    defined = rows < stops[-1]
    return Masked(y, defined[:, None]), Masked(out, defined)


def _reference(
    x: torch.Tensor, weight: torch.Tensor, group_list: torch.Tensor, weight_scale: torch.Tensor, x_scale: torch.Tensor
) -> tuple[Masked | None, ...]:
    return (*_result(x, weight, weight_scale, x_scale, group_list), None)


def _second(
    x: torch.Tensor,
    weight: list[torch.Tensor],
    weight_scale: list[torch.Tensor],
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    group_list_type: int = 0,
) -> tuple[Masked, Masked]:
    stops = group_list.cumsum(0) if group_list_type else group_list
    return _result(x, weight[0], weight_scale[0], x_scale, stops)


def _cases() -> Iterator[Case]:
    make = Maker("npu_grouped_matmul_swiglu_quant")
    for k, n in ((64, 64), (160, 96)):
        x, w = make.integers((11, k), -128, 128, torch.int8), make.integers((3, k, n), -128, 128, torch.int8)
        tokens, stops, counts = (
            make.uniform((11,), low=0.01, high=0.1),
            torch.tensor([4, 4, 9]),
            torch.tensor([4, 0, 5]),
        )
        for dtype in (torch.float32, torch.bfloat16):
            scale = make.uniform((3, n), dtype, 1e-4, 1e-3)
            yield Case(f"{k}x{n}, {dtype}", (x, w, stops, scale, tokens), returns=(torch.int8, torch.float32, None))
            for kind, groups in ((0, stops), (1, counts)):
                args = (x, [w], [scale], tokens, groups)
                call = {"group_list_type": kind}
                returns = (torch.int8, torch.float32)
                name = f"v2, {k}x{n}, groups {kind}, {dtype}"
                yield Case(name, args, call, form=_V2, reference=_second, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_grouped_matmul_swiglu_quant, bad")
    x, w = make.integers((4, 32), -9, 9, torch.int8), make.integers((2, 32, 32), -9, 9, torch.int8)
    stops, tokens = torch.tensor([2, 4]), torch.ones(4)
    yield Bad("scale too short", (x, w, stops, torch.ones(2, 16), tokens), names="weight_scale")
    yield Bad("more rows than x has", (x, w, torch.tensor([2, 9]), torch.ones(2, 32), tokens), names="group_list")


CONTRACT = Contract(
    name="npu_grouped_matmul_swiglu_quant",
    schemas=("npu::npu_grouped_matmul_swiglu_quant", _V2),
    formula="f = (x @ weight[e]) · weight_scale[e] · x_scale; h = silu(left half) · right half; scale = max |h| / 127, "
    "y = sat(rint(h / scale)).",
    dtypes=(torch.int8,),
    limits=(
        "weight [E, k, n] FRACTAL_NZ; weight_scale [E, n] float32 or bfloat16; x_scale float32 [rows]",
        "group_list: row ends; the second version also takes counts (group_list_type 1) and packed int4 weights, whose "
        "weight_assist_matrix is taken for what it must be: 8 · Σ weight · scale",
        "rows behind the last group are undefined; the third output is not there",
    ),
    tolerance={torch.int8: OFF_BY_ONE, torch.float32: Tolerance(4e-6, 1e-9, "the exponential, a few fp32 steps")},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    prepare=_prepare,
    widen=False,
    undefined=("rows behind the last group",),
    source="contracts 7.11: vendor documentation",
)
