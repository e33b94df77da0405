"""Contract of npu_gemma_rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = (x.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    return x * rstd * (1 + gamma), rstd


def _cases() -> Iterator[Case]:
    make = Maker("npu_gemma_rms_norm")
    for dtype in FLOATS:
        returns = (dtype, torch.float32)
        for label, shape, normalised in (
            ("aligned", (4, 64), (64,)),
            ("unaligned", (3, 5, 67), (67,)),
            ("two normalised dims", (3, 5, 24), (5, 24)),
            ("no rows", (0, 64), (64,)),
        ):
            x, gamma = make.normal(shape, dtype), make.uniform(normalised, dtype, -0.5, 0.5)
            yield Case(f"{label}, {dtype}", (x, gamma), dtype=dtype, returns=returns)
        gamma = make.uniform((40,), dtype, -0.5, 0.5)
        for label, x in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x, gamma), {"epsilon": 1e-3}, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_gemma_rms_norm, bad")
    x = make.normal((4, 64))
    yield Bad("gamma too long", (x, make.normal((128,))), names="gamma")
    yield Bad("gamma of another dtype", (x, make.normal((64,), torch.bfloat16)), names="gamma")


CONTRACT = Contract(
    name="npu_gemma_rms_norm",
    schemas=("npu::npu_gemma_rms_norm",),
    formula="rstd = 1 / sqrt(mean(x², normalised dims) + epsilon); y = x · rstd · (1 + gamma); returns (y, rstd).",
    dtypes=FLOATS,
    limits=("as npu_rms_norm", "1 + gamma is formed in fp32"),
    tolerance=rounded(),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 2.2: vendor documentation",
)
