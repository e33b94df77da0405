"""Contract of aloft::compact_weight: nothing that reads the weight may see a difference."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.compact import compact
from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker
from aloft.ops.products import ND, NZ, TOLERANCE

_DTYPES = (torch.bfloat16, torch.float16)


def _call(x: torch.Tensor, weight: torch.Tensor, weight_format: int = NZ) -> tuple[torch.Tensor, ...]:
    """The weight read back, of a copy too; a product with it, and with its transpose."""
    config = torch.npu.config  # type: ignore[attr-defined]
    config.allow_internal_format = True
    try:
        cast = torch.ops.npu.npu_format_cast
        packed = cast(weight.clone(memory_format=torch.contiguous_format), weight_format)
        compact(packed)
        compact(packed)  # as often as one likes
        again = packed.clone()
        return cast(packed, ND), cast(again, ND), torch.mm(x, packed), torch.mm(x, packed.t().t())
    finally:
        config.allow_internal_format = False


def _reference(x: torch.Tensor, weight: torch.Tensor, weight_format: int = NZ) -> tuple[torch.Tensor, ...]:
    product = x.double() @ weight.double()
    return weight, weight, product, product


def _cases() -> Iterator[Case]:
    make = Maker("compact_weight")
    for dtype in _DTYPES:
        for k, n in ((576, 960), (32, 1024), (1536, 576), (160, 496), (64, 16), (33, 1040)):
            weight = make.normal((k, n), dtype, scale=0.05)
            if k == 576:
                weight[::100, ::50] *= 1e4  # exponents of their own
                weight[::7, 3] = 0.0
            yield Case(f"{k}x{n}, {dtype}", (make.normal((5, k), dtype), weight), dtype=dtype)
        wide = make.integers((256, 256), -20, 20).double()
        spread = (
            torch.randn(256, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2.0**wide / 1e6
        )
        yield Case(f"exponents of all kinds, {dtype}", (make.normal((3, 256), dtype), spread.to(dtype)), dtype=dtype)
        x, weight = make.normal((9, 128), dtype), make.normal((128, 256), dtype)
        yield Case(f"ND, {dtype}", (x, weight), {"weight_format": ND}, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("compact_weight, bad")
    yield Bad(
        "three dimensions", (make.normal((2, 32, 64), torch.bfloat16),), names="weight", form="aloft::compact_weight"
    )


CONTRACT = Contract(
    name="compact_weight",
    schemas=("aloft::compact_weight",),
    formula="weight ← the same values in three quarters of the bytes; returns the bytes a product reads, 0: unchanged",
    dtypes=_DTYPES,
    limits=(
        "rewritten: bfloat16 [in, out] in FRACTAL_NZ owning its storage, multiples of 32 and 16, 16,384 values or more",
        "16 exponents must cover all but one value in 512; processors with AVX-512; else the weight stays as it is",
    ),
    tolerance=TOLERANCE | {(dtype, place): EXACT for dtype in _DTYPES for place in (0, 1)},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    call=_call,
    optional=True,
    source="aloft: kernels/compact.h; lossless exponent coding of bfloat16 weights (Zhang et al. 2025, DFloat11)",
)
