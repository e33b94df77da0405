"""Contract of npu_layer_norm_eval."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)


def _cases() -> Iterator[Case]:
    make = Maker("npu_layer_norm_eval")
    for dtype in FLOATS:
        for label, shape, normalised in (
            ("aligned", (4, 64), (64,)),
            ("unaligned", (3, 5, 67), (67,)),
            ("two normalised dims", (3, 5, 24), (5, 24)),
        ):
            x, weight = make.normal(shape, dtype, mean=1.0), make.uniform(normalised, dtype, 0.5, 1.5)
            yield Case(f"{label}, {dtype}", (x, list(normalised), weight, make.normal(normalised, dtype)), dtype=dtype)
            yield Case(f"{label}, no weight, {dtype}", (x, list(normalised)), {"eps": 1e-3}, dtype=dtype)
        for label, x in layouts(make.normal((5, 40), dtype)):
            yield Case(f"{label}, {dtype}", (x, [40]), dtype=dtype)


def _bad() -> Iterator[Bad]:
    x = Maker("npu_layer_norm_eval, bad").normal((4, 64))
    yield Bad("integers", (x.int(), [64]))


CONTRACT = Contract(
    name="npu_layer_norm_eval",
    schemas=("npu::npu_layer_norm_eval",),
    formula="y = (x - mean) / sqrt(var + eps) · weight + bias over the dimensions of normalized_shape.",
    dtypes=FLOATS,
    limits=(
        "normalized_shape equals the trailing dimensions of x",
        "weight and bias have that shape; torch_npu does not check it",
    ),
    tolerance=rounded(2, fp32=1e-5, atol=4e-6, why="two sums over a row"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 2.7: vendor documentation",
)
