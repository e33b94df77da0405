"""Contract of npu_add_rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded

TOLERANCE = rounded(3, why="fp16 rounds the sum, 16-bit types round x · rstd before gamma") | {
    (torch.float32, 1): Tolerance(2.0**-11 + 2e-6, 1e-7, "rstd of the sum, which fp16 rounds first")
}


def reference(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = x1 + x2
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = (x.square().mean(dims, keepdim=True) + epsilon).rsqrt()
    return x * rstd * gamma, rstd, x


def operands(name: str) -> Iterator[tuple[str, torch.dtype, tuple[torch.Tensor, ...]]]:
    """(label, dtype, (x1, x2, gamma)) shared by the forms of the operator."""
    make = Maker(name)
    for dtype in FLOATS:
        for label, shape, normalised in (
            ("aligned", (4, 64), (64,)),
            ("unaligned", (3, 5, 67), (67,)),
            ("one element", (1, 1), (1,)),
            ("two normalised dims", (3, 5, 24), (5, 24)),
            ("wide", (2, 4099), (4099,)),
        ):
            gamma = make.uniform(normalised, dtype, 0.5, 1.5)
            yield f"{label}, {dtype}", dtype, (make.normal(shape, dtype), make.normal(shape, dtype), gamma)
        gamma = make.uniform((40,), dtype, 0.5, 1.5)
        for label, x1 in layouts(make.normal((5, 40), dtype)):
            yield f"{label}, {dtype}", dtype, (x1, make.normal((5, 40), dtype), gamma)


def _cases() -> Iterator[Case]:
    for label, dtype, args in operands("npu_add_rms_norm"):
        yield Case(label, args, {"epsilon": 1e-5}, dtype=dtype, returns=(dtype, torch.float32, dtype))


def bad_operands(name: str) -> Iterator[Bad]:
    """Calls every form refuses."""
    make = Maker(f"{name}, bad")
    x, gamma = make.normal((4, 64)), make.normal((64,))
    yield Bad("x2 of another shape", (x, make.normal((4, 32)), gamma), names="x2")
    yield Bad("x2 of another dtype", (x, x.half(), gamma), names="x2")
    yield Bad("gamma too short", (x, x.clone(), make.normal((32,))), names="gamma")
    yield Bad("float32 gamma for bfloat16", (x.bfloat16(), x.bfloat16(), gamma), names="gamma", strict=True)


CONTRACT = Contract(
    name="npu_add_rms_norm",
    schemas=("npu::npu_add_rms_norm",),
    formula="x = x1 + x2; y = rms_norm(x) · gamma; returns (y, rstd, x).",
    dtypes=FLOATS,
    limits=(
        "x1 and x2 have one shape and dtype; gamma has that dtype and the trailing dimensions of x1",
        "1 to 8 dimensions, not empty",
        "fp16 normalises the rounded sum; bf16 normalises the fp32 sum; both round x · rstd before gamma",
    ),
    tolerance=TOLERANCE,
    reference=reference,
    cases=_cases,
    bad=lambda: bad_operands("npu_add_rms_norm"),
    source="contracts 2.3: vendor documentation and published kernels",
)
