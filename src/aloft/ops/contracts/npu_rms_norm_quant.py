"""Contract of npu_rms_norm_quant."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts.npu_add_rms_norm_quant import HALVES, OFF_BY_ONE, normed
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import saturate


def _reference(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    return saturate(normed(x, gamma, beta, epsilon) * scale + offset, -128, 127, torch.int8)


def _cases() -> Iterator[Case]:
    make = Maker("npu_rms_norm_quant")
    for dtype in HALVES:
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 67)), ("wide", (2, 4099)), ("no rows", (0, 8))):
            width = shape[-1:]
            rest = (make.uniform(width, dtype, 0.5, 1.5), make.normal(width, dtype, scale=0.1))
            one = (torch.tensor([30.0], dtype=dtype), torch.tensor([-5], dtype=torch.int8))
            yield Case(f"{label}, {dtype}", (make.normal(shape, dtype), *rest, *one), dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype)):
            rest = (make.uniform((40,), dtype, 0.5, 1.5), make.normal((40,), dtype, scale=0.1))
            one = (torch.tensor([30.0], dtype=dtype), torch.tensor([3], dtype=torch.int8))
            yield Case(f"{label}, {dtype}", (x, *rest, *one, 1e-3), dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_rms_norm_quant, bad")
    x, gamma = make.normal((4, 64), torch.bfloat16), make.normal((64,), torch.bfloat16)
    one, zero = torch.ones(1).bfloat16(), torch.zeros(1, dtype=torch.int8)
    yield Bad("gamma too short", (x, gamma[:32].clone(), gamma, one, zero), names="gamma")
    yield Bad("beta of another dtype", (x, gamma, gamma.half(), one, zero), names="beta")
    yield Bad("scale of 3 values", (x, gamma, gamma, torch.ones(3).bfloat16(), zero), names="scale")


CONTRACT = Contract(
    name="npu_rms_norm_quant",
    schemas=("npu::npu_rms_norm_quant",),
    formula="y = sat(rint((rms_norm(x) · gamma + beta) · scale + offset)).",
    dtypes=HALVES,
    limits=("multiplies by its scale (npu_add_rms_norm_quant divides)", "scale [1] like x, offset [1] int8"),
    tolerance={torch.int8: OFF_BY_ONE},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 2.6: vendor documentation",
)
