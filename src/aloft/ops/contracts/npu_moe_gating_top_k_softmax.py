"""Contract of npu_moe_gating_top_k_softmax and its second version: experts of a token by softmax scores."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
_V2 = "npu::npu_moe_gating_top_k_softmax_v2"


def best(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest of each row, the lower one of equal ones."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def _reference(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chosen = best(x, k)
    rows = x.numel() // x.shape[-1]
    columns = torch.arange(k) * rows + torch.arange(rows)[:, None]
    ids = chosen if finished is None else chosen.masked_fill(finished[..., None], x.shape[-1])
    return x.softmax(-1).gather(-1, chosen), ids.to(torch.int32), columns.view(chosen.shape).to(torch.int32)


def _second(
    x: torch.Tensor,
    *,
    k: int = 1,
    finished: torch.Tensor | None = None,
    renorm: int = 0,
    output_softmax: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    weights, ids, _ = _reference(x, finished, k)
    if renorm:
        weights = x.gather(-1, best(x, k)).softmax(-1)
    return weights, ids, x.softmax(-1) if output_softmax and not renorm else None


def _cases() -> Iterator[Case]:
    make = Maker("npu_moe_gating_top_k_softmax")
    shapes = {"one row": (1, 8, 2), "odd": (7, 60, 4), "many": (37, 128, 8), "all": (3, 5, 5), "one": (6, 16, 1)}
    for dtype in (F32, F16, BF16):
        for label, (rows, experts, k) in shapes.items():
            x = make.normal((rows, experts), dtype, 2.0)
            yield Case(f"{label}, {dtype}", (x, None, k), dtype=dtype)
            for renorm in (0, 1):
                call = {"k": k, "renorm": renorm, "output_softmax": not renorm}
                returns = (dtype, torch.int32, F32 if not renorm else None)
                yield Case(f"{label}, v2, {renorm}, {dtype}", (x,), call, dtype, returns, form=_V2, reference=_second)
        x = make.normal((5, 24), dtype)
        yield Case(f"finished, {dtype}", (x, make.bools((5,)), 3), dtype=dtype)
        yield Case(f"three dimensions, {dtype}", (make.normal((2, 3, 8), dtype), None, 2), dtype=dtype)
        for label, view in layouts(x):
            yield Case(f"{label}, {dtype}", (view, None, 3), dtype=dtype)
    level = torch.tensor([[1.0, 2.0, 2.0, 1.0, -float("inf"), 2.0]])
    yield Case("equal and -inf", (level, None, 5))


def _bad() -> Iterator[Bad]:
    x = Maker("npu_moe_gating_top_k_softmax, bad").normal((4, 8))
    yield Bad("k beyond the experts", (x, None, 9), names="k")
    yield Bad("renorm", (x,), {"k": 2, "renorm": 2}, names="renorm", form=_V2)
    yield Bad("integers", (x.to(torch.int32), None, 2))


CONTRACT = Contract(
    name="npu_moe_gating_top_k_softmax",
    schemas=("npu::npu_moe_gating_top_k_softmax", _V2),
    formula="ids: the k largest of a row; weights: softmax(x) there; renorm=1 (v2): the softmax of these k.",
    dtypes=(F32, F16, BF16),
    limits=(
        "x [rows, experts] or [batch, rows, experts]; k up to the number of experts, at most 1024",
        "rows that are finished get the id `experts`",
        "third result: row_idx[r, j] = j * rows + r (first version), softmax(x) where asked for (second)",
        "equal values: the lower index; NaN is below every number",
    ),
    tolerance={
        F32: Tolerance(2**-20, 1e-7, "fp32 exponentials and sums of at most 128"),
        F16: Tolerance(2**-10, 1e-7, "fp32 inside, one rounding to fp16"),
        BF16: Tolerance(2**-7.9, 1e-7, "fp32 inside, one rounding to bf16"),
    },
    reference=_reference,
    cases=_cases,
    bad=_bad,
    undefined=("the softmax (v2) unless output_softmax=True and renorm=0",),
    source="contracts 8.2: vendor documentation and sources",
)
