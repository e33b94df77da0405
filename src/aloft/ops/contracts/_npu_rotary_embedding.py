"""Contract of _npu_rotary_embedding.

torch_npu's plugin builds its tables from the first cache of the process and keeps them: all cases share `CACHE`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts.npu_rotary_mul import turned
from aloft.ops.generate import Maker
from aloft.ops.rounding import rounded

WIDTH = 64
#: The one cache of a process that runs this contract: 50 positions of cosines, then sines.
CACHE = Maker("_npu_rotary_embedding, cache").normal((50, WIDTH), torch.bfloat16)


def _reference(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> tuple[()]:
    cos, sin = cos_sin_cache[positions.flatten()][:, None].chunk(2, -1)
    mode = "half" if is_neox_style else "interleave"
    for x in (query, key):
        heads = x.view(x.size(0), -1, head_size)
        table = [torch.cat((t, t), -1) if is_neox_style else t.repeat_interleave(2, -1) for t in (cos, sin)]
        heads.copy_(heads * table[0] + turned(heads, mode) * table[1])
    return ()


def _cases() -> Iterator[Case]:
    make = Maker("_npu_rotary_embedding")
    for neox in (True, False):
        style = "halves" if neox else "adjacent pairs"
        for label, shape, heads in (
            ("prefill", (7,), (4, 2)),
            ("one token", (1,), (3, 1)),
            ("positions in rows", (2, 3), (3, 3)),
            ("many", (130,), (5, 1)),
        ):
            positions = make.integers(shape, 0, 50)
            query, key = (make.normal((positions.numel(), n * WIDTH), torch.bfloat16) for n in heads)
            args = (positions, query, key, WIDTH, CACHE, neox)
            yield Case(f"{label}, {style}", args, dtype=torch.bfloat16)


def _bad() -> Iterator[Bad]:
    make = Maker("_npu_rotary_embedding, bad")
    positions = make.integers((6,), 0, 50)
    query, key = make.normal((6, 2 * WIDTH), torch.bfloat16), make.normal((6, WIDTH), torch.bfloat16)
    yield Bad("another dtype", (positions, query.half(), key.half(), WIDTH, CACHE, True), names="RopeOperation")
    yield Bad("key of another dtype", (positions, query, key.half(), WIDTH, CACHE, True), names="RopeOperation")
    yield Bad("position past the table", (torch.full((6,), 50), query, key, WIDTH, CACHE, True), names="index")
    yield Bad("more positions", (make.integers((7,), 0, 50), query, key, WIDTH, CACHE, True), names="cos has")
    yield Bad("fewer positions", (make.integers((5,), 0, 50), query, key, WIDTH, CACHE, True), names="cos has")


CONTRACT = Contract(
    name="_npu_rotary_embedding",
    schemas=("atb::_npu_rotary_embedding",),
    formula="Rotates every head of query and key, in place, by the cache rows of positions.",
    dtypes=(torch.bfloat16,),
    limits=(
        "query and key are [T, heads · head_size], contiguous; the cache is [positions, head_size], cosines then sines",
        "the cache is bfloat16 like query and key, or float32",
        "positions are integers of any shape with T elements",
        "the tables are those of the first cache of the process: later ones are ignored, so one process has one cache",
        "is_neox_style rotates halves, otherwise adjacent pairs; the order of elements stays",
    ),
    tolerance=rounded(fp32=4e-7, atol=4e-6, why="two products and a sum"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 4.5: schema and sources",
)
