"""Contract of npu_scatter_nd_update_."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int8, torch.bool)


def _reference(self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    self[tuple(indices.long().unbind(-1))] = updates
    return self


def _cases() -> Iterator[Case]:
    make = Maker("npu_scatter_nd_update_")
    for dtype in DTYPES:
        self, updates = make.normal((5, 6, 4), dtype, scale=20.0), make.normal((3, 4), dtype, scale=20.0)
        indices = torch.tensor([[1, 2], [4, 0], [0, 5]])
        yield Case(f"rows, {dtype}", (self, indices, updates), dtype=dtype)
        for label, view in layouts(make.normal((5, 6, 4), dtype, scale=20.0)):
            yield Case(f"{label}, {dtype}", (view, indices.int(), updates), dtype=dtype)
        flat = make.normal((7,), dtype, scale=20.0)
        yield Case(f"elements, {dtype}", (flat, torch.tensor([[6], [2]]), make.normal((2,), dtype)), dtype=dtype)
        blocks = (make.normal((5, 6, 4), dtype), torch.tensor([[[3]], [[1]]]), make.normal((2, 1, 6, 4), dtype))
        yield Case(f"blocks, {dtype}", blocks, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_scatter_nd_update_, bad")
    self, updates = make.normal((5, 6, 4)), make.normal((2, 4))
    yield Bad("index past the end", (self, torch.tensor([[1, 2], [5, 0]]), updates), names="indices")
    yield Bad("updates of another dtype", (self, torch.tensor([[1, 2], [3, 0]]), updates.half()), names="updates")
    yield Bad("updates of another shape", (self, torch.tensor([[1, 2], [3, 0]]), make.normal((2, 5))), names="updates")


CONTRACT = Contract(
    name="npu_scatter_nd_update_",
    schemas=("npu::npu_scatter_nd_update_",),
    formula="self[indices[i]] ← updates[i]; indices [..., k] address the first k dimensions.",
    dtypes=DTYPES,
    limits=("indices are int32 or int64", "updates has the shape indices.shape[:-1] + self.shape[k:]"),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    source="vendor documentation of ScatterNdUpdate",
)
