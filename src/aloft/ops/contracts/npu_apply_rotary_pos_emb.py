"""Contract of npu_apply_rotary_pos_emb."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts.npu_rotary_mul import turned
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _reference(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    for x in (query, key):
        x.copy_(x * cos + turned(x, rotary_mode) * sin)
    return query, key


def _cases() -> Iterator[Case]:
    make = Maker("npu_apply_rotary_pos_emb")
    for dtype in FLOATS:
        returns = (dtype, dtype)
        for width in (64, 128):
            for label, lead, layout in (("BSND", (2, 5), "BSND"), ("TND", (7,), "TND")):
                query, key = make.normal((*lead, 4, width), dtype), make.normal((*lead, 2, width), dtype)
                cos, sin = make.normal((*lead, 1, width), dtype), make.normal((*lead, 1, width), dtype)
                args = (query, key, cos, sin, layout)
                yield Case(f"{label}, {width}, {dtype}", args, dtype=dtype, returns=returns)
        cos, sin = make.normal((6, 1, 64), dtype), make.normal((6, 1, 64), dtype)
        for label, query in layouts(make.normal((6, 3, 64), dtype)):
            args = (query, make.normal((6, 1, 64), dtype), cos, sin, "TND")
            yield Case(f"{label}, {dtype}", args, dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_apply_rotary_pos_emb, bad")
    query, key, table = make.normal((7, 4, 64)), make.normal((7, 2, 64)), make.normal((7, 1, 64))
    yield Bad("key of another dtype", (query, key.half(), table, table.clone(), "TND"), names="key")
    yield Bad("tables of another length", (query, key, table[:5].clone(), table[:5].clone(), "TND"), names="cos")
    small = make.normal((7, 1, 32))
    yield Bad(
        "width 32",
        (make.normal((7, 4, 32)), make.normal((7, 2, 32)), small, small.clone(), "TND"),
        names="64 or 128",
        strict=True,
    )


CONTRACT = Contract(
    name="npu_apply_rotary_pos_emb",
    schemas=("npu::npu_apply_rotary_pos_emb",),
    formula="query ← query · cos + rot_half(query) · sin, key alike; returns both.",
    dtypes=FLOATS,
    limits=(
        "in place: query and key are overwritten though the schema does not say so",
        "layout BSND (4 dimensions) or TND (3); the last dimension is 64 or 128; A2 and A3 rotate halves only",
        "cos and sin have one head",
    ),
    tolerance=rounded(fp32=4e-7, atol=4e-6, why="two products and a sum"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    mutates=("query", "key"),
    source="contracts 4.2: vendor documentation and sources",
)
