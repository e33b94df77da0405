"""Contract of npu_add_layer_norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    x = x1 + x2
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (x - mean) * rstd * gamma + beta, mean, rstd, x if additional_output else None


def _cases() -> Iterator[Case]:
    make = Maker("npu_add_layer_norm")
    for dtype in FLOATS:
        returns = (dtype, torch.float32, torch.float32, dtype)
        for label, shape in (("aligned", (4, 64)), ("unaligned", (3, 5, 67)), ("wide", (2, 4099))):
            width = shape[-1:]
            args = (make.normal(shape, dtype), make.normal(shape, dtype, mean=2.0))
            weights = (make.uniform(width, dtype, 0.5, 1.5), make.normal(width, dtype))
            for extra in (True, False):
                yield Case(
                    f"{label}, x: {extra}, {dtype}", (*args, *weights, 1e-5, extra), dtype=dtype, returns=returns
                )
        weights = (make.uniform((40,), dtype, 0.5, 1.5), make.normal((40,), dtype))
        for label, x1 in layouts(make.normal((5, 40), dtype)):
            call = (x1, make.normal((5, 40), dtype), *weights, 1e-3, True)
            yield Case(f"{label}, {dtype}", call, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_add_layer_norm, bad")
    x, w = make.normal((4, 64)), make.normal((64,))
    yield Bad("gamma too short", (x, x.clone(), w[:32].clone(), w), names="gamma")
    yield Bad("x2 of another dtype", (x, x.half(), w, w.clone()), names="x2")


CONTRACT = Contract(
    name="npu_add_layer_norm",
    schemas=("npu::npu_add_layer_norm",),
    formula="x = x1 + x2; y = (x - mean) · rstd · gamma + beta; returns (y, mean, rstd, x).",
    dtypes=FLOATS,
    limits=("x1 and x2 have one shape and dtype", "gamma and beta have the last dimension of x1"),
    tolerance=rounded(2, fp32=1e-5, atol=4e-6, why="two sums over a row"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("x without additional_output",),
    source="contracts 2.7: vendor documentation",
)
