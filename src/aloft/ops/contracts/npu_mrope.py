"""Contract of npu_mrope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts.npu_rotary_mul import turned
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded


def _rows(section: list[int], half: int, interleaved: bool) -> torch.Tensor:
    """Row of the positions that gives each entry of the half table."""
    if not interleaved:
        return torch.repeat_interleave(torch.arange(len(section)), torch.tensor(section))
    rows = torch.zeros(half, dtype=torch.int64)
    bound = min(3 * section[1], half)
    rows[:bound] = torch.arange(bound) % 3
    return rows


def _reference(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str = "half",
    cache_mode: str = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    width = cos_sin_cache.size(1)
    half = width // 2
    table = cos_sin_cache[positions.long()]
    if mrope_section is not None and any(mrope_section):
        rows = _rows(mrope_section, half, cache_mode == "interleave")
        table = table[torch.cat((rows, rows)), :, torch.arange(width)].T
    cos, sin = table[:, None, :half], table[:, None, half:]
    spread = (lambda t: torch.cat((t, t), -1)) if rotary_mode == "half" else (lambda t: t.repeat_interleave(2, -1))

    def rotate(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.size(0), -1, head_size)
        part, tail = heads[..., :width], heads[..., width:]
        part = part * spread(cos) + turned(part, rotary_mode) * spread(sin)
        return torch.cat((part, tail), -1).reshape(x.shape)

    return rotate(query), rotate(key)


def _cases() -> Iterator[Case]:
    make = Maker("npu_mrope")
    for dtype in FLOATS:
        returns = (dtype, dtype)
        for label, section, options, width, size in (
            ("plain", None, {}, 64, 64),
            ("plain, adjacent pairs", None, {"rotary_mode": "interleave"}, 64, 64),
            ("partial", None, {}, 32, 96),
            ("three sections", [16, 24, 24], {}, 128, 128),
            ("three sections, adjacent pairs", [8, 12, 12], {"rotary_mode": "interleave"}, 64, 64),
            ("four sections", [16, 16, 16, 16], {}, 128, 128),
            ("interleaved sections", [24, 20, 20], {"cache_mode": "interleave"}, 128, 128),
            ("partial, sections", [4, 6, 6], {}, 32, 64),
        ):
            tokens = 6
            places = make.integers((len(section), tokens) if section else (tokens,), 0, 50)
            query, key = make.normal((tokens, 3 * size), dtype), make.normal((tokens, size), dtype)
            args = (places, query, key, make.normal((50, width), dtype), size)
            kwargs: dict[str, Any] = {"mrope_section": section, **options}
            yield Case(f"{label}, {dtype}", args, kwargs, dtype=dtype, returns=returns)
        for label, query in layouts(make.normal((6, 128), dtype)):
            head = (make.integers((6,), 0, 50, torch.int32), query, make.normal((6, 64), dtype))
            yield Case(f"{label}, {dtype}", (*head, make.normal((50, 64), dtype), 64), dtype=dtype, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_mrope, bad")
    query, key, cache = make.normal((6, 128)), make.normal((6, 64)), make.normal((50, 64))
    places = make.integers((3, 6), 0, 50)
    yield Bad("position past the table", (torch.full((6,), 50), query, key, cache, 64), names="positions")
    yield Bad("negative position", (torch.full((6,), -1), query, key, cache, 64), names="positions")
    yield Bad("sections do not add up", (places, query, key, cache, 64), {"mrope_section": [8, 8, 8]}, names="section")
    yield Bad("width is no multiple of head_size", (places[0].clone(), query, key, cache, 48), names="head_size")
    yield Bad("unknown mode", (places[0].clone(), query, key, cache, 64), {"rotary_mode": "interleaved"}, names="mode")
    narrow = make.normal((50, 24))
    yield Bad("width 24", (places[0].clone(), query, key, narrow, 64), names="multiples", strict=True)


CONTRACT = Contract(
    name="npu_mrope",
    schemas=("npu::npu_mrope",),
    formula="Rotates every head of query and key by the cache rows of positions; returns new tensors.",
    dtypes=FLOATS,
    limits=(
        "query and key are [T, heads · head_size]; cos_sin_cache is [positions, rotary_dim], cosines then sines",
        "positions are int32 or int64, [T], or [sections, T] with mrope_section, which adds up to rotary_dim / 2",
        "cache_mode interleave: entries 1, 4, 7, … and 2, 5, 8, … below 3 · section[1] come from rows 1 and 2",
        "head_size and rotary_dim are multiples of 32 (16-bit types) or 16 (float32); elements past rotary_dim stay",
    ),
    tolerance=rounded(fp32=4e-7, atol=4e-6, why="two products and a sum"),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 4.4: schema, vendor documentation and sources",
)
