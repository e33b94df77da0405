"""Exact references of the quantisers: every step one rounded float32 operation, as the kernels and the device do it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from aloft.ops.contract import Case

LEVELS = {"int8": 127.0, "int4": 7.0}


def saturate(values: torch.Tensor, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """rint (half to even), saturated."""
    return values.round().clamp(low, high).to(dtype)


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """Integers in [-8, 7], last dimension a multiple of 8 -> int32 with an eighth of it; the first in the low bits."""
    nibbles = (values.to(torch.int64) & 15).reshape(*values.shape[:-1], -1, 8)
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """int32 -> int8 with eight times the last dimension."""
    nibbles = (packed.to(torch.int64).unsqueeze(-1) >> torch.arange(0, 32, 4)) & 15
    signed = torch.where(nibbles >= 8, nibbles - 16, nibbles)
    return signed.reshape(*packed.shape[:-1], -1).to(torch.int8)


def store(values: torch.Tensor, int4: bool) -> torch.Tensor:
    """Rounded and saturated: int8, or packed int4."""
    if int4:
        return pack_int4(saturate(values, -8, 7, torch.int8))
    return saturate(values, -128, 127, torch.int8)


def dynamic(v: torch.Tensor, int4: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of float32: (int8 or packed int4, scale), v · (L / max) and max / L."""
    level = torch.tensor(LEVELS["int4" if int4 else "int8"])
    largest = v.abs().amax(-1) if v.shape[-1] else v.new_zeros(v.shape[:-1])
    factor = torch.where(largest > 0, level / largest, torch.zeros_like(largest))
    return store(v * factor.unsqueeze(-1), int4), largest / level


def dynamic_asymmetric(v: torch.Tensor, int4: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of float32: (int8 or packed int4, scale, offset)."""
    level = torch.tensor(LEVELS["int4" if int4 else "int8"])
    low, high = v.amin(-1), v.amax(-1)
    scale = ((high - low) / (2 * level + 1)).clamp_min(1e-12)
    offset = level - high / scale
    return store(v / scale.unsqueeze(-1) + offset.unsqueeze(-1), int4), scale, offset


def smoothed(x: torch.Tensor, smooth: torch.Tensor | None, group_index: torch.Tensor | None) -> torch.Tensor:
    """x · smooth of its row's group, in float32."""
    v = x.float()
    if smooth is None:
        return v
    if group_index is None:
        return v * smooth.float()
    rows = torch.arange(v[..., 0].numel())
    group = torch.searchsorted(group_index.to(torch.int64), rows, right=True)
    return v * smooth.float()[group].reshape(v.shape)


def int4_weight(weight: torch.Tensor, how: str) -> torch.Tensor:
    """Device int32 [.., k, n] in [-8, 7] -> packed int4: "n" along n, "k" the transposed view, "nz" FRACTAL_NZ."""
    pack = torch.ops.npu.npu_convert_weight_to_int4pack
    if how == "k":
        return pack(weight.mT.contiguous()).mT
    if how == "n":
        return pack(weight.contiguous())
    return pack(to_nz(weight))


def to_nz(weight: torch.Tensor) -> torch.Tensor:
    """A FRACTAL_NZ copy; a column-major weight is cast as it is stored and transposed afterwards."""
    config = torch.npu.config  # type: ignore[attr-defined]
    config.allow_internal_format = True
    try:
        transposed = weight.stride(-2) == 1 and weight.stride(-1) != 1
        stored = weight.mT.clone() if transposed else weight.clone()
        packed = torch.ops.npu.npu_format_cast(stored, 29)
        return packed.mT if transposed else packed
    finally:
        config.allow_internal_format = False  # torch_npu's default; it offers no way to read it


def nineteen_bits(scale: torch.Tensor) -> torch.Tensor:
    """float32 with the low 13 bits of the mantissa cleared, as the packed dequantisation parameter holds it."""
    return (scale.view(torch.int32) & -8192).view(torch.float32)


def unpack_parameter(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 dequantisation parameter -> (scale float32, offset float32)."""
    low = packed & 0xFFFFFFFF
    scale = torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32).view(torch.float32)
    nine = (packed >> 37) & 0x1FF
    return nineteen_bits(scale), torch.where(nine >= 256, nine - 512, nine).float()


def near_dynamic(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`dynamic` in the precision of `v` (float64 references of fused operators): int8 only."""
    largest = v.abs().amax(-1)
    factor = torch.where(largest > 0, 127.0 / largest, torch.zeros_like(largest))
    return saturate(v * factor.unsqueeze(-1), -128, 127, torch.int8), largest / 127.0


def by_operand(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases, each about the dtype of its first tensor; a 16-bit output keeps its dtype in `returns`."""
    for case in cases:
        operand = _first([*case.args, case.kwargs.get("x"), *case.kwargs.values()])
        returns = case.returns
        if returns is None and case.dtype in (torch.float16, torch.bfloat16):
            returns = (case.dtype,)
        yield replace(case, dtype=operand.dtype, returns=returns)


def _first(values: Iterable[Any]) -> torch.Tensor:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return value[0]
    raise ValueError("a case without a tensor")
