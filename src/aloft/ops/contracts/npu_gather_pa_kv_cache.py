"""Contract of npu_gather_pa_kv_cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker

DTYPES = (torch.float16, torch.bfloat16, torch.int8)


def _reference(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    size = key_cache.size(1)
    lengths = seq_lens.diff() if is_seq_lens_cumsum else seq_lens
    row = 0
    for b, length in enumerate(lengths.tolist()):
        first = 0 if seq_offset is None else int(seq_offset[b]) // size
        for j in range(length):
            block = int(block_tables[b, first + j // size])
            key[row], value[row] = key_cache[block, j % size], value_cache[block, j % size]
            row += 1


def _cases() -> Iterator[Case]:
    make = Maker("npu_gather_pa_kv_cache")
    tables = torch.tensor([[3, 1, 0], [2, 4, 0], [1, 0, 2]], dtype=torch.int32)
    for dtype in DTYPES:
        for widths in ((32, 64), (3, 5)):
            caches = tuple(make.normal((5, 4, 2, d), dtype, scale=20.0) for d in widths)
            for cumulative in (False, True):
                for offset in (None, [4, 0, 0]):
                    lengths = torch.tensor([6, 0, 9] if offset is None else [5, 0, 9], dtype=torch.int32)
                    total = int(lengths.sum())
                    if cumulative:
                        lengths = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()))
                    outputs = tuple(make.normal((total, 2, d), dtype) for d in widths)
                    options: dict[str, Any] = {"is_seq_lens_cumsum": cumulative}
                    if offset is not None:
                        options["seq_offset"] = torch.tensor(offset, dtype=torch.int32)
                    label = f"widths {widths}, cumulative: {cumulative}, offset: {offset is not None}, {dtype}"
                    yield Case(label, (*caches, tables, lengths, *outputs), options, dtype=dtype)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_gather_pa_kv_cache, bad")
    cache, out = make.normal((5, 4, 2, 32), torch.bfloat16), make.normal((6, 2, 32), torch.bfloat16)
    tables = torch.tensor([[3, 1], [2, 4]], dtype=torch.int32)

    def call(lengths: list[int], t: torch.Tensor = tables) -> tuple[torch.Tensor, ...]:
        return cache, cache.clone(), t, torch.tensor(lengths, dtype=torch.int32), out, out.clone()

    yield Bad("more tokens than the output holds", call([4, 3]), names="seq_lens")
    yield Bad("one length too many", call([2, 2, 2]), names="seq_lens")
    yield Bad("unknown block", call([3, 3], torch.tensor([[3, 1], [5, 4]], dtype=torch.int32)), names="block_tables")
    yield Bad("no leading 0", call([1, 2, 3]), {"is_seq_lens_cumsum": True}, names="seq_lens")


CONTRACT = Contract(
    name="npu_gather_pa_kv_cache",
    schemas=("npu::npu_gather_pa_kv_cache",),
    formula="key, value ← the first len_b tokens of every sequence, from its blocks, one sequence after the other.",
    dtypes=DTYPES,
    limits=(
        "caches [blocks, bs, heads, D]; key and value [sum of lengths, heads, D], overwritten",
        "block_tables and seq_lens are int32; cumulative lengths begin with 0",
        "seq_offset skips whole blocks: its remainder by bs is ignored",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    source="contracts 5.3: vendor documentation and sources",
)
