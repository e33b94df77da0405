"""Contract of npu_grouped_matmul: rows of x grouped by expert, in every precision of the inference operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Masked, Tolerance
from aloft.ops.generate import Maker, transposed
from aloft.ops.quant import by_operand, int4_weight, to_nz

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32
EXPERTS = 4


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """form: None as it is; "NZ" cast; "int4" packed along n."""
    weight, form = kwargs["weight"], kwargs.pop("form", None)
    if form == "NZ":
        kwargs["weight"] = [to_nz(weight[0])]
    elif form == "int4":
        experts, k, n = weight[0].shape
        kwargs["weight"] = [int4_weight(weight[0].reshape(experts * k, n), "n").view(experts, k, n // 8)]
    return args, kwargs


def ends(group_list: torch.Tensor, kind: int, experts: int) -> torch.Tensor:
    """Row ends by expert of any encoding."""
    if kind == 0:
        return group_list
    if kind == 1:
        return group_list.cumsum(0)
    counts = torch.zeros(experts, dtype=torch.int64)
    counts[group_list[:, 0]] = group_list[:, 1]
    return counts.cumsum(0)


def _spread(table: torch.Tensor, k: int) -> torch.Tensor:
    """[n] or [groups, n] -> broadcastable to [k, n]."""
    return table if table.dim() == 1 else table.repeat_interleave(k // table.shape[0], 0)


def _reference(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    group_list: torch.Tensor,
    group_list_type: int = 0,
    bias: list[torch.Tensor] | None = None,
    scale: list[torch.Tensor] | None = None,
    per_token_scale: list[torch.Tensor] | None = None,
    antiquant_scale: list[torch.Tensor] | None = None,
    antiquant_offset: list[torch.Tensor] | None = None,
    form: str | None = None,
    **_: Any,
) -> Masked:
    rows, k = x[0].shape
    stops = ends(group_list, group_list_type, weight[0].shape[0])
    group = torch.searchsorted(stops, torch.arange(rows), right=True)
    y = torch.zeros(rows, weight[0].shape[-1], dtype=torch.float64)
    for r in range(int(stops[-1])):
        e = int(group[r])
        w = weight[0][e].double()
        if antiquant_offset is not None:
            w = w + _spread(antiquant_offset[0][e], k)
        if antiquant_scale is not None:
            w = w * _spread(antiquant_scale[0][e], k)
        integer = bias is not None and bias[0].dtype == I32
        if scale is not None:
            table = scale[0][e]
            if table.dtype == torch.int64:
                low = table & 0xFFFFFFFF
                table = torch.where(low >= 1 << 31, low - (1 << 32), low).to(I32).view(F32)
            by_k = _spread(table.double(), k) if table.dim() == 2 else None
            value = x[0][r].double() @ (w if by_k is None else w * by_k)
            value = value + bias[0][e].double() if integer and bias is not None else value
            value = value if by_k is not None else value * table.double()
        else:
            value = x[0][r].double() @ w
        if per_token_scale is not None:
            value = value * per_token_scale[0][r].double()
        if bias is not None and not integer and form != "int4":
            value = value + bias[0][e].double()
        y[r] = value
    integers = scale is None and x[0].dtype == I8
    return Masked(y.to(I32) if integers else y, (torch.arange(rows) < stops[-1])[:, None])


def _cases() -> Iterator[Case]:
    make = Maker("npu_grouped_matmul")
    lists = {0: torch.tensor([3, 3, 4, 9]), 1: torch.tensor([3, 0, 1, 5]), 2: torch.tensor([[0, 3], [2, 1], [3, 5]])}
    base: dict[str, Any] = {"split_item": 2, "group_type": 0}
    for k, n in ((64, 48), (100, 24), (256, 72)):
        x, w = make.integers((11, k), -128, 128, I8), make.integers((EXPERTS, k, n), -128, 128, I8)
        for kind, groups in lists.items():
            call = base | {"x": [x], "weight": [w], "group_list": groups, "group_list_type": kind, "output_dtype": I32}
            yield Case(f"int8 raw, {k}x{n}, groups {kind}", (), call)
        counts = base | {"group_list": lists[1], "group_list_type": 1}
        tokens = make.uniform((11,), low=0.01, high=0.1)
        for form, weight in ((None, w), ("NZ", w.clone()), (None, transposed(w))):
            label = f"{k}x{n}, {form}, {weight.stride()}"
            call = counts | {"x": [x], "weight": [weight], "form": form, "output_dtype": BF16}
            call |= {"scale": [make.uniform((EXPERTS, n), BF16, 1e-4, 1e-3)], "per_token_scale": [tokens]}
            yield Case(f"int8 by token, {label}", (), call, dtype=BF16)
            call = call | {"scale": [make.uniform((EXPERTS, n), F32, 1e-4, 1e-3)], "output_dtype": F16}
            bias = make.integers((EXPERTS, n), -900, 900, I32)
            yield Case(f"int8 by token, float16, bias, {label}", (), call | {"bias": [bias]}, dtype=F16)
        for dtype in (F16, BF16):
            wide = make.normal((11, k), dtype)
            bias_type = F32 if dtype == BF16 else F16
            plain = counts | {"x": [wide], "weight": [make.normal((EXPERTS, k, n), dtype)]}
            yield Case(f"plain, {k}x{n}, {dtype}", (), plain, dtype=dtype)
            call = plain | {"form": "NZ", "bias": [make.normal((EXPERTS, n), bias_type)]}
            yield Case(f"plain NZ, bias, {k}x{n}, {dtype}", (), call, dtype=dtype)
            call = counts | {
                "x": [wide],
                "weight": [w],
                "antiquant_scale": [make.uniform((EXPERTS, n), dtype, 1e-3, 1e-2)],
            }
            call |= {"antiquant_offset": [make.integers((EXPERTS, n), -5, 6).to(dtype)]}
            yield Case(f"W8A16, {k}x{n}, {dtype}", (), call, dtype=dtype)
    x, w = make.integers((11, 512), -128, 128, I8), make.integers((EXPERTS, 512, 64), -8, 8, I32)
    counts = base | {"group_list": lists[1], "group_list_type": 1, "form": "int4", "weight": [w]}
    for parts in (1, 2):
        scale = make.uniform((EXPERTS, parts, 64), low=1e-3, high=1e-2).view(I32) & -8192
        eights = 8 * (w.double() * scale.view(F32).double().repeat_interleave(512 // parts, 1)).sum(1)
        packed = scale.to(torch.int64)
        call = counts | {"x": [x], "scale": [packed], "bias": [eights.float()], "output_dtype": BF16}
        call |= {"per_token_scale": [make.uniform((11,), low=0.01, high=0.1)]}
        yield Case(f"W4A8, {parts} groups of k", (), call, dtype=BF16)
        for dtype in (F16, BF16):
            call = counts | {"x": [make.normal((11, 512), dtype)]}
            call |= {"antiquant_scale": [make.uniform((EXPERTS, 4 * parts, 64), dtype, 1e-3, 1e-2)]}
            call |= {"antiquant_offset": [make.normal((EXPERTS, 4 * parts, 64), dtype)]}
            yield Case(f"W4A16, {4 * parts} groups of k, {dtype}", (), call, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_grouped_matmul, bad")
    x, w = make.integers((6, 32), -9, 9, I8), make.integers((2, 32, 16), -9, 9, I8)
    call: dict[str, Any] = {"x": [x], "weight": [w], "split_item": 2, "group_type": 0, "group_list_type": 1}
    call |= {"group_list": torch.tensor([2, 4]), "output_dtype": I32}
    yield Bad("inner dimensions", (), call | {"weight": [w[:, :16].clone()]}, names="k")
    yield Bad("more rows than x has", (), call | {"group_list": torch.tensor([2, 9])}, names="group_list")
    scaled = call | {"output_dtype": BF16}
    yield Bad("no scale", (), scaled, names="scale")
    yield Bad("scale too short", (), scaled | {"scale": [torch.ones(2, 8)]}, names="scale")
    yield Bad("k grouped", (), call | {"group_type": 2})


_SUM = 2.0**-23 * 16
CONTRACT = Contract(
    name="npu_grouped_matmul",
    schemas=("npu::npu_grouped_matmul",),
    formula="rows of group e: y = x @ weight[e], then scales and bias as npu_quant_matmul (int8 x) or "
    "npu_weight_quant_batchmatmul (16-bit x).",
    dtypes=(I8, F16, BF16),
    limits=(
        "group_type 0 (rows; one x, one weight [E, k, n] or a list) and -1 (zipped lists); group_type 2 is not there",
        "group_list int64: row ends (type 0), counts (1), pairs (2); rows behind the last group are undefined",
        "weights ND, FRACTAL_NZ or transposed views; int4 packed along n",
        "W4A8: scale int64 [E, 1, n] or [E, groups, n], bias = 8 · Σ weight · scale (x - 8 is multiplied), counts",
        "act_type 0 only",
    ),
    tolerance={
        BF16: Tolerance(2**-8 + _SUM, 3e-4, "fp32 sums of up to 512 products, one rounding to bf16"),
        F16: Tolerance(2**-11 + _SUM, 3e-4, "fp32 sums of up to 512 products, one rounding to fp16"),
    },
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    prepare=_prepare,
    widen=False,
    undefined=("rows behind the last group",),
    source="contracts 7.10: vendor documentation and sources",
)
