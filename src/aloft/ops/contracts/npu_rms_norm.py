"""Contract of npu_rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _reference(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = (x.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    return x * rstd * gamma, rstd


def _cases() -> Iterator[Case]:
    make = Maker("npu_rms_norm")
    shapes = {
        "aligned": ((4, 64), (64,)),
        "unaligned": ((3, 5, 67), (67,)),
        "one element": ((1, 1), (1,)),
        "two normalised dims": ((3, 5, 64), (5, 64)),
        "no rows": ((0, 64), (64,)),
        "wide": ((2, 4099), (4099,)),
        "eight dims": ((1, 2, 1, 2, 1, 2, 1, 33), (33,)),
    }
    for dtype in DTYPES:
        returns = (dtype, torch.float32)
        for label, (shape, normalised) in shapes.items():
            x, gamma = make.normal(shape, dtype), make.uniform(normalised, dtype, 0.5, 1.5)
            yield Case(f"{label}, {dtype}", (x, gamma), dtype=dtype, returns=returns)
        gamma = make.uniform((48,), dtype, 0.5, 1.5)
        for label, x in layouts(make.normal((5, 48), dtype)):
            yield Case(f"{label}, {dtype}", (x, gamma), {"epsilon": 1e-3}, dtype=dtype, returns=returns)
        small = make.normal((3, 40), dtype, scale=1e-3)
        yield Case(f"epsilon dominates, {dtype}", (small, gamma[:40]), {"epsilon": 0.1}, dtype=dtype, returns=returns)
    for dtype in DTYPES[1:]:
        x, gamma = make.normal((6, 96), dtype), make.uniform((96,), torch.float32, 0.5, 1.5)
        yield Case(f"float32 gamma, {dtype}", (x, gamma), dtype=dtype, returns=(dtype, torch.float32))
    special = make.normal((4, 32))
    special[0, 3], special[1, 4], special[2, :] = float("nan"), float("inf"), 0.0
    yield Case("NaN, infinity and zero rows", (special, make.uniform((32,))), returns=(torch.float32, torch.float32))


def _bad() -> Iterator[Bad]:
    make = Maker("npu_rms_norm, bad")
    x = make.normal((4, 64))
    yield Bad("gamma too short", (x, make.normal((32,))), names="gamma")
    yield Bad("gamma of another dtype", (x, make.normal((64,), torch.float16)), names="gamma")
    yield Bad("gamma has more dimensions than x", (x, make.normal((2, 4, 64))), names="gamma")
    yield Bad("integers", (x.int(), x[0].int()), names="x")


CONTRACT = Contract(
    name="npu_rms_norm",
    schemas=("npu::npu_rms_norm",),
    formula="rstd = 1 / sqrt(mean(x², normalised dims) + epsilon); y = x · rstd · gamma; returns (y, rstd).",
    dtypes=DTYPES,
    limits=(
        "gamma.shape equals the trailing dimensions of x, over which the mean is taken",
        "gamma has the dtype of x, or float32 with a 16-bit x",
        "rstd is float32; its shape is that of x with the normalised dimensions replaced by 1",
        "x has 1 to 8 dimensions; empty tensors are allowed",
    ),
    tolerance={
        torch.float32: Tolerance(2e-6, 1e-7, "fp32 sum of squares in any order, three fp32 roundings"),
        torch.float16: Tolerance(2**-11 + 1e-5, 2**-24, "fp32 inside, one rounding to fp16"),
        torch.bfloat16: Tolerance(2**-8 + 1e-5, 1e-8, "fp32 inside, one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 2.1: vendor documentation and published kernels",
)
