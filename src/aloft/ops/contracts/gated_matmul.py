"""Contract of aloft::gated_matmul."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families import decoder
from aloft.ops.generate import Maker, transposed
from aloft.ops.products import without_format
from aloft.ops.rounding import FLOATS


def _cases() -> Iterator[Case]:
    make = Maker("gated_matmul")
    for dtype in FLOATS:
        for rows, width, units in ((1, 64, 16), (5, 33, 7), (70, 96, 48), (0, 16, 16), (130, 128, 64)):
            x, weight = make.normal((rows, width), dtype), decoder.weight(make, width, 2 * units, dtype)
            label = f"{rows}x{width}x{units}, {dtype}"
            for more in decoder.formats(dtype):
                yield Case(f"{label}{', NZ' if more else ''}", (x, weight), more, dtype=dtype)
                bias = make.normal((2 * units,), dtype)
                yield Case(f"{label}{', NZ' if more else ''}, bias", (x, weight, bias), more, dtype=dtype)
            if rows:
                yield Case(f"{label}, weight column-major", (x, transposed(weight)), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("gated_matmul, bad")
    x, weight = make.normal((3, 16), torch.bfloat16), make.normal((16, 32), torch.bfloat16)
    yield Bad("odd columns", (x, weight[:, :31].clone()), names="gate_up_weight")
    yield Bad("another width", (x, weight[:15].clone()), names="gate_up_weight")
    yield Bad("another dtype", (x, weight.half()), names="gate_up_weight")
    yield Bad("bias too short", (x, weight, weight[0, :31].clone()), names="bias")
    yield Bad("x is not contiguous", (x.T.contiguous().T, weight), names="x")
    yield Bad("integers", (x.int(), weight), names="x")


CONTRACT = Contract(
    name="gated_matmul",
    schemas=("aloft::gated_matmul",),
    formula="silu(g) · u with [g, u] = x @ gate_up_weight + gate_up_bias.",
    dtypes=FLOATS,
    limits=("x [T, W], gate_up_weight [W, 2 I], gate_up_bias [2 I]; the result is [T, I]", *decoder.LIMITS[:2]),
    tolerance=decoder.tolerance(1),
    reference=without_format(decoder.gated_matmul),
    cases=_cases,
    bad=_bad,
    prepare=decoder.packing(1),
    optional=True,
    source="aloft: gate and up projection of a decoder layer, composed of mm and npu_swiglu on CANN",
)
