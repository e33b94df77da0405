"""Contract of npu_anti_quant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker
from aloft.ops.quant import by_operand, unpack_int4


def _reference(
    x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None = None, dst_dtype: Any = None
) -> torch.Tensor:
    values = unpack_int4(x) if x.dtype == torch.int32 else x
    return (values.double() + (0 if offset is None else offset)) * scale


def _cases() -> Iterator[Case]:
    make = Maker("npu_anti_quant")
    for kind, dtype in ((torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16)):
        for shape in ((4, 64), (3, 5, 72), (40,)):
            x = make.integers(shape, -128, 128, torch.int8)
            scale, offset = make.uniform(shape[-1:], kind, 0.01, 0.1), make.normal(shape[-1:], kind, scale=5.0)
            call = {"dst_dtype": dtype}
            yield Case(f"{shape}, {dtype}", (x, scale), call | {"offset": offset}, dtype=dtype)
            yield Case(f"{shape}, one scale, {dtype}", (x, scale[:1].clone()), call, dtype=dtype)
        packed = make.integers((3, 8), -(1 << 31), (1 << 31) - 1, torch.int32)
        scale, offset = make.uniform((64,), kind, 0.01, 0.1), make.normal((64,), kind, scale=3.0)
        yield Case(f"int4, {dtype}", (packed, scale), {"dst_dtype": dtype, "offset": offset}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    x = Maker("npu_anti_quant, bad").integers((4, 16), -9, 9, torch.int8)
    yield Bad("scale too short", (x, torch.ones(8)), names="scale")
    yield Bad("float x", (x.float(), torch.ones(16)), names="x")


CONTRACT = Contract(
    name="npu_anti_quant",
    schemas=("npu::npu_anti_quant",),
    formula="y = (x + offset) · scale.",
    dtypes=(torch.int8, torch.int32),
    limits=("x int8, or packed int4 whose scale has eight times the last dimension", "float16 (default) or bfloat16"),
    tolerance={
        torch.float16: Tolerance(2**-11 + 1e-6, 2**-24, "one rounding to fp16"),
        torch.bfloat16: Tolerance(2**-8 + 1e-6, 1e-8, "one rounding to bf16"),
    },
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    source="contracts 7.4: vendor documentation",
)
