"""Contract of npu_format_cast: to an internal layout and back, the values must not change."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

ND, NZ, NC1HWC0, FRACTAL_Z = 2, 29, 3, 4
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64)


def _call(x: torch.Tensor, acl_format: int) -> torch.Tensor:
    """There and back; fails if the layout was not taken.

    torch_npu converts the whole storage by its own shape, so a part of a flat buffer would stay as it is: cast a clone.
    """
    import torch_npu

    config = torch.npu.config  # type: ignore[attr-defined]
    config.allow_internal_format = True
    try:
        there = torch.ops.npu.npu_format_cast(x.clone(memory_format=torch.contiguous_format), acl_format)
        found = int(torch_npu.get_npu_format(there))
        if found != acl_format:
            raise RuntimeError(f"the tensor has the format {found}, {acl_format} was asked for")
        return torch.ops.npu.npu_format_cast(there, 0 if acl_format in (NC1HWC0, FRACTAL_Z) else ND)
    finally:
        config.allow_internal_format = False  # torch_npu's default; it offers no way to read it


def _cases() -> Iterator[Case]:
    make = Maker("npu_format_cast")
    for dtype in DTYPES:
        for shape in ((16, 32), (20, 40), (3, 20, 40), (2, 3, 4, 5), (1, 1), (33, 1), (0, 16)):
            yield Case(f"NZ, {shape}, {dtype}", (make.normal(shape, dtype, scale=50.0), NZ), dtype=dtype)
        for label, x in layouts(make.normal((20, 40), dtype, scale=50.0)):
            yield Case(f"NZ, {label}, {dtype}", (x, NZ), dtype=dtype)
    for dtype in (torch.float16, torch.float32):
        for layout in (NC1HWC0, FRACTAL_Z):
            for shape in ((2, 20, 3, 5), (17, 33, 1, 2), (1, 1, 1, 1)):
                label = f"format {layout}, {shape}, {dtype}"
                yield Case(label, (make.normal(shape, dtype), layout), dtype=dtype)


def _bad() -> Iterator[Bad]:
    x = Maker("npu_format_cast, bad").normal((16, 32), torch.float16)
    for code in (99, -5):
        yield Bad(f"format {code}", (x, code), names="format")


CONTRACT = Contract(
    name="npu_format_cast",
    schemas=("npu::npu_format_cast",),
    formula="The same values in another physical layout; casting there and back gives identical bits.",
    dtypes=DTYPES,
    limits=(
        "FRACTAL_NZ (29): [..., ceil(C / c0), ceil(R / 16), 16, c0], c0 = 16, or 32 for 8-bit types; padding is zero",
        "NC1HWC0 (3) and FRACTAL_Z (4) for up to four dimensions",
        "the storage is converted as a whole, whatever view of it is given: cast tensors that own their storage",
        "internal formats must be allowed: torch.npu.config.allow_internal_format",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=lambda x, acl_format: x,
    cases=_cases,
    bad=_bad,
    call=_call,
    widen=False,
    source="contracts 1.4 and 7.16: vendor documentation and sources",
)
