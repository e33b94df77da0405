"""Contract of npu_dynamic_quant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import by_operand, dynamic, smoothed

HALVES = (torch.float16, torch.bfloat16)
INT4 = torch.quint4x2


def _reference(
    input: torch.Tensor,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return dynamic(smoothed(input, smooth_scales, group_index), dst_type is INT4)


def operands(name: str) -> Iterator[tuple[str, tuple[torch.Tensor], dict[str, Any]]]:
    """(label, args, kwargs) shared with the asymmetric form."""
    make = Maker(name)
    for dtype in HALVES:
        shapes = {"aligned": (4, 64), "unaligned": (3, 5, 67), "one value": (1, 1), "no rows": (0, 64)}
        shapes |= {"wide": (2, 4099), "many rows": (300, 72)}
        for label, shape in shapes.items():
            yield f"{label}, {dtype}", (make.normal(shape, dtype),), {}
        for label, x in layouts(make.normal((5, 48), dtype)):
            yield f"{label}, {dtype}", (x,), {}
            yield f"int4, {label}, {dtype}", (x,), {"dst_type": INT4}
        smooth = make.uniform((67,), dtype, 0.2, 3.0)
        yield f"smooth, {dtype}", (make.normal((7, 67), dtype),), {"smooth_scales": smooth}
        groups = {
            "smooth_scales": make.uniform((4, 24), dtype, 0.2, 3.0),
            "group_index": torch.tensor([3, 3, 4, 10], dtype=torch.int32),
        }
        yield f"groups, one of them empty, {dtype}", (make.normal((10, 24), dtype),), groups
        yield f"int4 with groups, {dtype}", (make.normal((2, 5, 24), dtype),), groups | {"dst_type": INT4}
        special = make.normal((4, 40), dtype)
        special[0] = 0.0
        special[1] = torch.linspace(-127, 127, 40).round() + 0.5  # ties
        special[2, 5:] = 0.0
        special[3] *= 2.0**-10
        yield f"zeros, ties and small values, {dtype}", (special,), {}


def _cases() -> Iterator[Case]:
    for label, args, kwargs in operands("npu_dynamic_quant"):
        yield Case(label, args, kwargs, returns=(None, torch.float32))


def bad_operands(name: str) -> Iterator[Bad]:
    """Calls both forms refuse."""
    make = Maker(f"{name}, bad")
    x = make.normal((4, 64), torch.bfloat16)
    yield Bad("integers", (x.int(),), names="x")
    yield Bad("one dimension", (x[0].clone(),), names="dim")
    yield Bad("smooth scales too short", (x,), {"smooth_scales": x[0, :32].clone()}, names="smooth_scales")
    ends = torch.tensor([2, 4], dtype=torch.int32)
    yield Bad("groups without smooth scales", (x,), {"group_index": ends}, names="smooth_scales")
    grouped = {"smooth_scales": x[:2].clone()}
    yield Bad("int64 groups", (x,), {**grouped, "group_index": ends.long()}, names="group_index")
    descending = torch.tensor([5, 4], dtype=torch.int32)
    yield Bad("groups beyond the rows", (x,), {**grouped, "group_index": descending}, names="group_index")
    yield Bad("int4 of 12 columns", (x[:, :12].clone(),), {"dst_type": INT4}, names="8")
    yield Bad("unknown mode", (x,), {"quant_mode": "perrow"}, names="quant_mode")
    yield Bad("float32", (x.float(),), names="float32", strict=True)
    yield Bad("smooth scales of another dtype", (x,), {"smooth_scales": x[0].float()}, names="smooth", strict=True)
    yield Bad("per tensor", (x,), {"quant_mode": "pertensor"}, names="quant_mode", strict=True)


CONTRACT = Contract(
    name="npu_dynamic_quant",
    schemas=("npu::npu_dynamic_quant",),
    formula="v = x · smooth; m = max |v| of a row; y = sat(rint(v · (127 / m))), scale = m / 127 (7 for int4).",
    dtypes=HALVES,
    limits=(
        "x has at least two dimensions; a row of zeros gives zeros and scale 0",
        "y is int8, or with dst_type torch.quint4x2 int32 with an eighth of the last dimension (a multiple of 8)",
        "smooth_scales [K], or [E, K] with group_index int32 [E]: row ends of the groups, the last one the rows",
        "smooth_scales has the dtype of x",
        "quant_mode pertensor and perchannel exist on Ascend 950 only",
    ),
    tolerance={torch.float32: EXACT},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=lambda: bad_operands("npu_dynamic_quant"),
    widen=False,
    source="contracts 7.2: vendor documentation and published kernels",
)
