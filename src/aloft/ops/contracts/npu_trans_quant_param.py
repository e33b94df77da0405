"""Contract of npu_trans_quant_param."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker


def _reference(scale: torch.Tensor, offset: torch.Tensor | None = None, round_mode: int = 0) -> torch.Tensor:
    bits = scale.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if round_mode:
        bits = bits + 0xFFF + ((bits >> 13) & 1)
    packed = (bits & 0xFFFFE000) | (1 << 46)
    if offset is not None:
        packed = packed | ((offset.clamp(-256, 255).round().to(torch.int64) & 0x1FF) << 37)
    return packed


def _cases() -> Iterator[Case]:
    make = Maker("npu_trans_quant_param")
    yield Case("known values", (torch.tensor([1.0, 0.5, 0.1]),))
    for n in (1, 7, 300):
        scale, offset = make.uniform((n,), low=1e-5, high=3.0), make.normal((n,), scale=120.0)
        for mode in (0, 1):
            yield Case(f"{n} scales, round_mode {mode}", (scale,), {"round_mode": mode})
            yield Case(f"{n} scales and offsets, round_mode {mode}", (scale, offset, mode))
        yield Case(f"{n} scales, one offset", (scale, torch.tensor([-3.5])))
        yield Case(f"one scale, {n} offsets", (torch.tensor([0.3]), offset))


def _bad() -> Iterator[Bad]:
    yield Bad("float16", (torch.ones(4).half(),), names="float32")
    yield Bad("lengths differ", (torch.ones(4), torch.ones(3)), names="offset")
    yield Bad("unknown round_mode", (torch.ones(4),), {"round_mode": 2}, names="round_mode")


CONTRACT = Contract(
    name="npu_trans_quant_param",
    schemas=("npu::npu_trans_quant_param",),
    formula="bits 0-31: the float32 scale, 13 bits of its mantissa cleared; bits 37-45: rint(offset); bit 46 set.",
    dtypes=(torch.float32,),
    limits=("one dimension each; a single value goes with all", "round_mode 1 rounds half to even before clearing"),
    tolerance={},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    source="contracts 7.6: vendor documentation and sources",
)
