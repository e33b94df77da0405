"""Contract of aloft::mlp_block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families import decoder
from aloft.ops.generate import Maker
from aloft.ops.products import without_format
from aloft.ops.rounding import FLOATS


def _operands(make: Maker, rows: int, heads: int, width: int, units: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (
        make.normal((rows, heads), dtype),
        make.normal((rows, width), dtype),
        decoder.weight(make, heads, width, dtype),
        None,
        make.uniform((width,), dtype, 0.5, 1.5),
        1e-5,
        decoder.weight(make, width, 2 * units, dtype),
        None,
        decoder.weight(make, units, width, dtype),
        None,
    )


def _cases() -> Iterator[Case]:
    make = Maker("mlp_block")
    for dtype in FLOATS:
        for shape in ((1, 64, 64, 32), (5, 33, 47, 7), (70, 128, 96, 48), (0, 16, 16, 16)):
            args = _operands(make, *shape, dtype)
            width, units = shape[2:]
            for more in decoder.formats(dtype):
                label = f"{shape}{', NZ' if more else ''}, {dtype}"
                yield Case(label, args, more, dtype=dtype)
                yield Case(f"{label}, blocks of 16", args, {**more, "block_rows": 16}, dtype=dtype)
            biased = list(args)
            for place, size in ((3, width), (7, 2 * units), (9, width)):
                biased[place] = make.normal((size,), dtype)
            yield Case(f"{shape}, biases, {dtype}", tuple(biased), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("mlp_block, bad")
    args = _operands(make, 3, 16, 32, 16, torch.bfloat16)

    def call(place: int, value: Any) -> tuple[Any, ...]:
        return (*args[:place], value, *args[place + 1 :])

    yield Bad("attention is not contiguous", call(0, args[0].T.contiguous().T), names="attention")
    yield Bad("a row too few in residual", call(1, args[1][:2].clone()), names="residual")
    yield Bad("o_weight of another width", call(2, args[2][:, :31].clone()), names="o_weight")
    yield Bad("norm_weight of another dtype", call(4, args[4].float()), names="norm_weight")
    yield Bad("odd columns", call(6, args[6][:, :31].clone()), names="gate_up_weight")
    yield Bad("down_weight too short", call(8, args[8][:15].clone()), names="down_weight")
    yield Bad("bias too long", call(9, make.normal((33,), torch.bfloat16)), names="down_weight's bias")
    yield Bad("negative block", args, {"block_rows": -1}, names="block_rows")


CONTRACT = Contract(
    name="mlp_block",
    schemas=("aloft::mlp_block",),
    formula="r = attention @ o + residual; h = gated_matmul(rms_norm(r), gate_up) @ down; returns (h, r).",
    dtypes=FLOATS,
    limits=("attention [T, Hq·D], residual [T, W], gate_up_weight [W, 2 I]; biases may be left out", *decoder.LIMITS),
    tolerance=decoder.tolerance(3),
    reference=without_format(decoder.mlp_block),
    cases=_cases,
    bad=_bad,
    prepare=decoder.packing(2, 6, 8),
    optional=True,
    source="aloft: a decoder layer behind its attention, composed of mm, npu_add_rms_norm and npu_swiglu on CANN",
)
