"""Contract of npu_convert_weight_to_int4pack."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker
from aloft.ops.quant import by_operand, pack_int4, to_nz

_OP = "npu_convert_weight_to_int4pack"


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if kwargs.pop("nz", False):
        return (to_nz(args[0]), *args[1:]), kwargs
    return args, kwargs


def _call(weight: torch.Tensor, inner_k_tiles: int = 0) -> torch.Tensor:
    """The packed weight; of a FRACTAL_NZ one the memory, read as it lies: [n / 64, k / 16, 16, 8]."""
    import torch_npu

    packed = torch.ops.npu.npu_convert_weight_to_int4pack(weight, inner_k_tiles)
    if int(torch_npu.get_npu_format(packed)) != 29:
        return packed
    rows, words = packed.shape
    elements = -(-words // 8) * -(-rows // 16) * 16 * 8
    flat = torch.empty(0, dtype=torch.int32, device=packed.device).set_(packed.untyped_storage(), 0, (elements,), (1,))
    raw = torch.empty(elements, dtype=torch.int32)
    torch.npu.synchronize()  # type: ignore[attr-defined]
    acl = ctypes.CDLL("libascendcl.so")
    to, source = ctypes.c_void_p(raw.data_ptr()), ctypes.c_void_p(flat.data_ptr())
    code = acl.aclrtMemcpy(to, elements * 4, source, elements * 4, 2)
    if code:
        raise RuntimeError(f"aclrtMemcpy failed with {code}")
    return raw.to(weight.device)


def _reference(weight: torch.Tensor, inner_k_tiles: int = 0, nz: bool = False) -> torch.Tensor:
    packed = pack_int4(weight)
    if not nz:
        return packed
    rows, words = packed.shape
    memory = torch.zeros(-(-words // 8) * 8, -(-rows // 16) * 16, dtype=torch.int32)
    memory[:words, :rows] = packed.mT
    return memory.reshape(-1, 8, memory.shape[1]).transpose(1, 2).reshape(-1)


def _cases() -> Iterator[Case]:
    make = Maker(_OP)
    yield Case("known value", (torch.tensor([[1, 2, 3, 4, 5, 6, 7, -1]], dtype=torch.int32),))
    for shape in ((16, 64), (5, 24), (33, 200)):
        weight = make.integers(shape, -8, 8, torch.int32)
        yield Case(f"{shape}", (weight,))
        yield Case(f"{shape}, NZ", (weight.clone(),), {"nz": True})


def _bad() -> Iterator[Bad]:
    weight = Maker(f"{_OP}, bad").integers((8, 12), -8, 8, torch.int32)
    yield Bad("12 columns", (weight,), names="8")
    yield Bad("int8", (weight[:, :8].to(torch.int8).contiguous(),), names="int32")


CONTRACT = Contract(
    name=_OP,
    schemas=(f"npu::{_OP}",),
    formula="Eight values of the last dimension become one int32, the first in the lowest four bits.",
    dtypes=(torch.int32,),
    limits=(
        "weight int32 [k, n] with values in [-8, 7], contiguous, n a multiple of 8",
        "of three dimensions this torch_npu packs the first matrix only: give [experts * k, n]",
        "a FRACTAL_NZ weight gives FRACTAL_NZ with c0 = 8 int32 (64 values a line)",
    ),
    tolerance={},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    call=_call,
    prepare=_prepare,
    widen=False,
    source="contracts 7.8: vendor sources",
)
