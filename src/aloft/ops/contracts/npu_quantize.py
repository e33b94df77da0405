"""Contract of npu_quantize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import by_operand, pack_int4, saturate
from aloft.ops.rounding import FLOATS

_RANGES = {
    torch.qint8: (-128, 127, torch.int8),
    torch.quint8: (0, 255, torch.uint8),
    torch.qint32: (-(1 << 31), (1 << 31) - 128, torch.int32),
    torch.quint4x2: (-8, 7, torch.int8),
}


def _reference(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: Any,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    if not div_mode:
        axis = axis if axis == -2 else -1
    shape = [1] * input.dim()
    shape[axis] = -1
    scale = scales.float().reshape(shape)
    zero = torch.zeros(()) if zero_points is None else zero_points.float().reshape(shape)
    x = input.float()
    low, high, kind = _RANGES[dtype]
    q = saturate((x / scale if div_mode else x * scale) + zero, low, high, kind)
    return pack_int4(q) if dtype is torch.quint4x2 else q


def _cases() -> Iterator[Case]:
    make = Maker("npu_quantize")
    qint8, int4 = torch.qint8, torch.quint4x2
    for dtype in FLOATS:
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 67)), ("no rows", (0, 64)), ("long", (9000,))):
            x = make.normal(shape, dtype, scale=3.0)
            one, zero = torch.tensor([30.0], dtype=dtype), torch.tensor([-7.0], dtype=dtype)
            yield Case(f"{label}, multiplied, {dtype}", (x, one, zero, qint8, -1, False))
            yield Case(f"{label}, no offset, {dtype}", (x, one, None, qint8, -1, False))
            wide, zeros = make.uniform(shape[-1:], dtype, 5.0, 60.0), make.normal(shape[-1:], dtype, scale=9.0)
            yield Case(f"{label}, per channel, {dtype}", (x, wide, zeros, qint8, -1, False))
            yield Case(f"{label}, one offset for all channels, {dtype}", (x, wide, zero, qint8, -1, False))
        for label, x in layouts(make.normal((6, 40), dtype, scale=3.0)):
            wide = make.uniform((40,), dtype, 5.0, 60.0)
            yield Case(f"{label}, {dtype}", (x, wide, None, qint8, -1, False))
            yield Case(f"int4, {label}, {dtype}", (x, wide.clone(), None, int4, -1, False))
            tall = make.uniform((6,), dtype, 0.5, 3.0)
            yield Case(f"second-last dimension, {label}, {dtype}", (x, tall, None, qint8, -2, False))
        ties = (torch.arange(64) * 0.5 - 16).to(dtype)
        yield Case(f"ties, {dtype}", (ties[None], torch.ones(1, dtype=dtype), None, qint8, -1, False))
    make = Maker("npu_quantize, divided")
    for kind in (torch.qint8, torch.quint8, torch.qint32):
        x = make.normal((5, 3, 17), scale=40.0)
        for axis in (0, 1, -1):
            scale = make.uniform((x.shape[axis],), low=0.3, high=2.0)
            zero = make.integers((x.shape[axis],), -5, 6, torch.int32)
            yield Case(f"divided, axis {axis}, {kind}", (x, scale, zero, kind, axis, True))
        args = (x, torch.tensor([0.7]), torch.tensor([3], dtype=torch.int32), kind, -1, True)
        yield Case(f"divided, per tensor, {kind}", args)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_quantize, bad")
    x, one = make.normal((4, 64)), torch.ones(1)
    yield Bad("scale too short", (x, torch.ones(32), None, torch.qint8, -1, False), names="scale")
    yield Bad("scales too short, divided", (x, torch.ones(32), None, torch.qint8, 1, True), names="scale")
    yield Bad("integers", (x.int(), one, None, torch.qint8, -1, False), names="x")
    yield Bad("int4 of 12 columns", (x[:, :12].clone(), one, None, torch.quint4x2, -1, False), names="8")
    yield Bad("axis out of range", (x, one, None, torch.qint8, 5, True), names="axis")
    halves = (x.half(), one, None, torch.qint8, -1, False)
    yield Bad("float32 scale for float16", halves, names="scale", strict=True)


CONTRACT = Contract(
    name="npu_quantize",
    schemas=("npu::npu_quantize",),
    formula="div_mode: y = sat(rint(x / scales + zero_points)); otherwise y = sat(rint(x · scales + zero_points)).",
    dtypes=FLOATS,
    limits=(
        "scales and zero_points hold one value or one a channel of `axis`",
        "div_mode False: axis -2 or the last dimension (whatever else is given); scales have the dtype of x",
        "div_mode False: torch.qint8, or torch.quint4x2: packed int32 with an eighth of the last dimension",
        "div_mode True: torch.qint8, torch.quint8 and torch.qint32",
    ),
    tolerance={},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    widen=False,
    source="contracts 7.1: vendor documentation and sources",
)
