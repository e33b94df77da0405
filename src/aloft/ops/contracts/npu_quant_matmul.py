"""Contract of npu_quant_matmul: int8 x int8, int8 x int4 (W4A8) and int4 x int4 (W4A4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts, transposed
from aloft.ops.quant import by_operand, int4_weight, nineteen_bits, saturate, to_nz, unpack_parameter

BF16, F16, I32, I8 = torch.bfloat16, torch.float16, torch.int32, torch.int8


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """x2_form: None as it is; "NZ" cast; "n", "k", "nz": int4 packed. x1_int4: x1 packed."""
    x1, x2, scale = args
    form = kwargs.pop("x2_form", None)
    if kwargs.pop("x1_int4", False):
        x1 = int4_weight(x1, "n")
    if form == "NZ":
        x2 = to_nz(x2)
    elif form is not None:
        x2 = int4_weight(x2, form)
    return (x1, x2, scale), kwargs


def _reference(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype = I8,
    group_sizes: list[int] | None = None,
    **_: Any,
) -> torch.Tensor:
    out_offset = offset
    if scale.dtype == torch.int64:
        scale, packed = unpack_parameter(scale)
        out_offset = packed if offset is None else offset
    elif scale.dtype == torch.float32 and pertoken_scale is None and output_dtype in (F16, I8):
        scale = nineteen_bits(scale)  # torch_npu packs it
    scale = scale.double()
    if scale.dim() == 2:
        group = group_sizes[2] if group_sizes else -(-x1.shape[-1] // scale.shape[0])
        value = torch.zeros(())
        for g, (a, b) in enumerate(zip(x1.double().split(group, -1), x2.double().split(group, -2), strict=True)):
            zero = 0.0 if offset is None else offset.double()[g] * a.sum(-1, keepdim=True)
            value = value + (a @ b - zero) * scale[g]
    else:
        value = x1.double() @ x2.double()
        if bias is not None and bias.dtype == I32:
            value = value + bias.double()
        if output_dtype == I32:
            return value.to(I32)
        value = value * scale
    if pertoken_scale is not None:
        value = value * pertoken_scale.double()[:, None]
    if bias is not None and bias.dtype != I32:
        value = value + bias.double()
    if output_dtype == I8:
        whole = value.float().round()
        if out_offset is not None:
            whole = whole + out_offset.float().clamp(-256, 255).round()
        return saturate(whole, -128, 127, I8)
    return value


def _cases() -> Iterator[Case]:
    make = Maker("npu_quant_matmul")
    for m, n, k in ((1, 48, 64), (3, 17, 31), (5, 16, 100), (33, 130, 257), (2, 1, 40), (70, 96, 192)):
        x1, x2 = make.integers((m, k), -128, 128, I8), make.integers((k, n), -128, 128, I8)
        scale, tokens = make.uniform((n,), low=1e-4, high=1e-2), make.uniform((m,), low=0.01, high=0.1)
        integers = make.integers((n,), -3000, 3000, I32)
        for label, weight, form in (
            ("", x2, None),
            (", transposed", transposed(x2), None),
            (", NZ", x2.clone(), "NZ"),
            (", transposed NZ", transposed(x2), "NZ"),
        ):
            call = {"output_dtype": BF16, "pertoken_scale": tokens, "bias": make.normal((n,)), "x2_form": form}
            yield Case(f"{m}x{n}x{k}{label}", (x1, weight, scale), call, dtype=BF16)
            raw = {"output_dtype": I32, "bias": integers, "x2_form": form}
            yield Case(f"{m}x{n}x{k}{label}, int32", (x1, weight, scale), raw)
        fixed = (x1, x2, scale)
        yield Case(f"{m}x{n}x{k}, float16", fixed, {"output_dtype": F16, "bias": integers}, dtype=F16)
        tokenwise = {"output_dtype": F16, "pertoken_scale": tokens, "bias": make.normal((n,), F16)}
        yield Case(f"{m}x{n}x{k}, float16 by token", fixed, tokenwise, dtype=F16)
        yield Case(f"{m}x{n}x{k}, int8", fixed, {"output_dtype": I8, "bias": integers, "offset": torch.tensor([-3.0])})
        one = (x1, x2, make.uniform((1,), BF16, 1e-4, 1e-2))
        yield Case(f"{m}x{n}x{k}, one bfloat16 scale", one, {"output_dtype": BF16, "bias": integers}, dtype=BF16)
    x1, x2 = make.integers((5, 40), -128, 128, I8), make.integers((40, 24), -128, 128, I8)
    scale = make.uniform((24,), low=1e-4, high=1e-2)
    for label, view in layouts(x1):
        yield Case(f"left {label}", (view, x2, scale), {"output_dtype": I32})
    for label, left, right in (
        ("batch", (2, 3, 5, 40), (2, 3, 40, 24)),
        ("broadcast batch", (2, 1, 5, 40), (3, 40, 24)),
    ):
        args = (make.integers(left, -128, 128, I8), make.integers(right, -128, 128, I8), scale)
        yield Case(label, args, {"output_dtype": I32})
    for value, other in ((-128, -128), (-128, 127), (127, 127), (127, -128)):
        args = (torch.full((3, 9000), value, dtype=I8), torch.full((9000, 33), other, dtype=I8), torch.ones(1))
        yield Case(f"{value} times {other}, 9000 of them", args, {"output_dtype": I32})
    yield from _int4(make)


def _int4(make: Maker) -> Iterator[Case]:
    for m, n, k in ((1, 64, 256), (3, 72, 512), (20, 136, 768)):
        x1, x2 = make.integers((m, k), -128, 128, I8), make.integers((k, n), -8, 8, I32)
        tokens, scale = make.uniform((m,), low=0.01, high=0.1), make.uniform((n,), low=1e-3, high=1e-2)
        packed = _packed(scale)
        by_group = _packed(make.uniform((k // 256, n), low=1e-3, high=1e-2))
        for out in (BF16, F16):
            for form in ("n", "nz"):
                call = {"output_dtype": out, "pertoken_scale": tokens, "x2_form": form}
                yield Case(f"W4A8, {m}x{n}x{k}, {form}, {out}", (x1, x2, packed), call, dtype=out)
                grouped = call | {"group_sizes": [0, 0, 256]}
                yield Case(f"W4A8 by group, {m}x{n}x{k}, {form}, {out}", (x1, x2, by_group), grouped, dtype=out)
        left = make.integers((m, k), -8, 8, I32)
        for form in ("n", "k"):
            call = {"output_dtype": BF16, "pertoken_scale": tokens, "x1_int4": True, "x2_form": form}
            yield Case(f"W4A4, {m}x{n}x{k}, {form}", (left, x2, scale), call, dtype=BF16)
            static = {"output_dtype": F16, "x1_int4": True, "x2_form": form}
            yield Case(f"W4A4 static, {m}x{n}x{k}, {form}", (left, x2, packed), static, dtype=F16)
        zero = make.normal((k // 256, n), F16, scale=2.0)
        scales = make.uniform((k // 256, n), low=1e-3, high=1e-2)
        call = {"output_dtype": BF16, "pertoken_scale": tokens, "offset": zero, "group_sizes": [0, 0, 256]}
        yield Case(
            f"W4A4 by group, {m}x{n}x{k}", (left, x2, scales), call | {"x1_int4": True, "x2_form": "k"}, dtype=BF16
        )


def _packed(scale: torch.Tensor) -> torch.Tensor:
    return (scale.view(I32).to(torch.int64) & 0xFFFFE000) | (1 << 46)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_quant_matmul, bad")
    x1, x2 = make.integers((4, 32), -128, 128, I8), make.integers((32, 16), -128, 128, I8)
    scale = torch.ones(16)
    bf16 = {"output_dtype": BF16}
    yield Bad("inner dimensions", (x1, x2[:16].clone(), scale), bf16, names="x1")
    yield Bad("scale too short", (x1, x2, torch.ones(8)), bf16, names="scale")
    yield Bad("float weights", (x1, x2.half(), scale), bf16, names="x2")
    yield Bad("per-token scales of another length", (x1, x2, scale), bf16 | {"pertoken_scale": scale}, names="pertoken")
    yield Bad("bias too long", (x1, x2, scale), bf16 | {"bias": torch.ones(17)}, names="bias")
    yield Bad("float16 scale", (x1, x2, scale.half()), bf16, names="scale")
    nothing = (x1[:0].clone(), x2, scale)
    yield Bad("no rows", nothing, bf16, names="empty", strict=True)
    floating = {"output_dtype": I32, "bias": torch.ones(16)}
    yield Bad("float bias with int32 output", (x1, x2, scale), floating, names="bias", strict=True)


_SUM = 2.0**-23 * 8
CONTRACT = Contract(
    name="npu_quant_matmul",
    schemas=("npu::npu_quant_matmul",),
    formula="acc = x1 @ x2 in int32, exact; (acc + int32 bias) · scale · pertoken_scale + float bias, rounded once; "
    "int8: rint, + offset. By group of k: Σ (acc_g - offset_g · Σ x1_g) · scale_g.",
    dtypes=(I8, I32),
    limits=(
        "x2 is [k, n], ND or FRACTAL_NZ, contiguous or the transposed view of [n, k]; at most 65535 a dimension",
        "scale float32, bfloat16 or int64 (npu_trans_quant_param: 19 bits), one or [n]; torch_npu packs float32 ones "
        "for int8 output, and for float16 without pertoken_scale",
        "bias int32 before the scales, or float after them; pertoken_scale float32 [m]",
        "W4A8: x1 int8, x2 int4 packed along n (ND or FRACTAL_NZ), scale int64 [n] or [k / 256, n], pertoken_scale",
        "W4A4: both packed, x2 along n or k; scale [n], or float32 [k / 256, n] with a float16 offset of that shape",
        "groups of k other than 256 (multiples of 32) work on the virtual NPU only",
    ),
    tolerance={
        BF16: Tolerance(2**-8 + _SUM, 1e-6, "exact sums, a few fp32 steps, one rounding to bf16"),
        F16: Tolerance(2**-11 + _SUM, 2e-6, "exact sums, a few fp32 steps, one rounding to fp16"),
    },
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    prepare=_prepare,
    widen=False,
    source="contracts 7.5: vendor documentation",
)
