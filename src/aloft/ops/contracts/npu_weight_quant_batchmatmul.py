"""Contract of npu_weight_quant_batchmatmul: W8A16 and W4A16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts, transposed
from aloft.ops.quant import int4_weight, to_nz

HALVES = (torch.float16, torch.bfloat16)


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """weight_form: None as it is; "NZ" cast; "n", "k", "nz": int4 packed."""
    x, weight, *rest = args
    form = kwargs.pop("weight_form", None)
    if form == "NZ":
        weight = to_nz(weight)
    elif form is not None:
        weight = int4_weight(weight, form)
    return (x, weight, *rest), kwargs


def _reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    **_: Any,
) -> torch.Tensor:
    w = weight.double()
    if antiquant_group_size:
        spread = lambda t: t.repeat_interleave(antiquant_group_size, 0)[: w.shape[0]]  # noqa: E731
    else:
        spread = lambda t: t  # noqa: E731
    if antiquant_offset is not None:
        w = w + spread(antiquant_offset)
    y = x @ (w * spread(antiquant_scale))
    return y if bias is None else y + bias


def _cases() -> Iterator[Case]:
    make = Maker("npu_weight_quant_batchmatmul")
    for dtype in HALVES:
        wide = torch.float32 if dtype == torch.bfloat16 else torch.float16
        for m, n, k in ((1, 64, 96), (3, 17, 65), (6, 40, 257), (37, 130, 128), (2, 1, 70)):
            x, weight = make.normal((m, k), dtype), make.integers((k, n), -128, 128, torch.int8)
            scale = make.uniform((n,), dtype, 1e-3, 1e-2)
            calls: dict[str, dict[str, Any]] = {
                "symmetric": {},
                "offset": {"antiquant_offset": make.integers((n,), -9, 9).to(dtype)},
                "bias": {"bias": make.normal((n,), wide)},
            }
            for label, call in calls.items():
                for how, form, operand in (
                    ("as it is", None, weight),
                    ("NZ", "NZ", weight.clone()),
                    ("transposed", None, transposed(weight)),
                ):
                    name = f"{m}x{n}x{k}, {label}, {how}, {dtype}"
                    yield Case(name, (x, operand, scale), call | {"weight_form": form}, dtype=dtype)
            one = (x, weight, make.uniform((1,), dtype, 1e-3, 1e-2))
            yield Case(f"{m}x{n}x{k}, one scale, {dtype}", one, dtype=dtype)
        for m, n, k in ((1, 64, 256), (3, 72, 192), (21, 136, 320)):
            x, weight = make.normal((m, k), dtype), make.integers((k, n), -8, 8, torch.int32)
            for group in (0, 32, 64, 128):
                rows = -(-k // group) if group else 1
                scale, zero = make.uniform((rows, n), dtype, 1e-2, 1e-1), make.normal((rows, n), dtype, scale=3.0)
                for form in ("n", "k", "nz"):
                    options: dict[str, Any] = {"weight_form": form, "antiquant_group_size": group}
                    name = f"int4, {m}x{n}x{k}, groups of {group}, {form}, {dtype}"
                    yield Case(name, (x, weight, scale), options, dtype=dtype)
                    yield Case(f"{name}, offset", (x, weight, scale, zero), options, dtype=dtype)
        weight, scale = make.integers((40, 24), -128, 128, torch.int8), make.uniform((24,), dtype, 1e-3, 1e-2)
        for label, view in layouts(make.normal((5, 40), dtype)):
            yield Case(f"x {label}, {dtype}", (view, weight, scale), dtype=dtype)
        tall = make.uniform((24, 2), dtype, 1e-3, 1e-2).mT
        args = (make.normal((5, 64), dtype), make.integers((64, 24), -128, 128, torch.int8), tall)
        yield Case(f"transposed scales, {dtype}", args, {"antiquant_group_size": 32}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_weight_quant_batchmatmul, bad")
    x, weight = make.normal((4, 64), torch.float16), make.integers((64, 16), -128, 128, torch.int8)
    scale = torch.ones(16).half()
    yield Bad("float32 x", (x.float(), weight, scale.float()), names="x")
    yield Bad("scale too short", (x, weight, scale[:8].clone()), names="antiquant_scale")
    yield Bad("inner dimensions", (x, weight[:32].clone(), scale), names="k")
    yield Bad("groups of 48", (x, weight, torch.ones(2, 16).half()), {"antiquant_group_size": 48}, names="group_size")
    yield Bad("float weights", (x, weight.half(), scale), names="weight")
    yield Bad("bias too long", (x, weight, scale), {"bias": torch.ones(17).half()}, names="bias")
    yield Bad("scale of another dtype", (x, weight, scale.float()), names="antiquant_scale", strict=True)


_SUM = 2.0**-24 * 90 * 320**0.5 * 4  # the products' magnitudes sum to about 90; k is 320 at most
CONTRACT = Contract(
    name="npu_weight_quant_batchmatmul",
    schemas=("npu::npu_weight_quant_batchmatmul",),
    formula="y = x @ ((weight + antiquant_offset) · antiquant_scale) + bias.",
    dtypes=HALVES,
    limits=(
        "x [m, k]; weight int8 [k, n] or int4 packed in int32, ND or FRACTAL_NZ, contiguous or the transposed view",
        "antiquant_scale and _offset have the dtype of x: [1], [n], or [ceil(k / g), n] with antiquant_group_size g",
        "antiquant_group_size is 0, or a multiple of 32 below k",
        "bias [n]: float32 for bfloat16, float16 for float16",
        "the weights are widened to fp32 as they are read; hardware rounds (weight + offset) · scale to 16 bits first",
    ),
    tolerance={
        torch.float16: Tolerance(2**-11 + 1e-5, _SUM, "fp32 sums of k products, one rounding to fp16"),
        torch.bfloat16: Tolerance(2**-8 + 1e-5, _SUM, "fp32 sums of k products, one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    prepare=_prepare,
    source="contracts 7.7: vendor documentation",
)
