"""Contract of aloft::decoder_stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families import decoder
from aloft.ops.families.attention import paged, totals
from aloft.ops.generate import Maker
from aloft.ops.products import without_format
from aloft.ops.rounding import FLOATS

_NAMES = (
    *("hidden", "weights", "epsilons", "cos", "sin", "interleaved", "key_caches", "value_caches", "slot_mapping"),
    *("block_table", "cu_query_lens", "kv_lens", "num_heads", "scale", "window_left"),
)
#: (query tokens, keys) of the sequences
_LENGTHS = ((5, 5), (1, 40), (18, 20))


def _operands(
    make: Maker, dtype: torch.dtype, heads: int, kv_heads: int, size: int, more: bool = False, layers: int = 2
) -> dict[str, Any]:
    """`more`: biases, norms of the heads, another window in every layer."""
    queries, keys = zip(*_LENGTHS, strict=True)
    tokens, width, units, block_size = sum(queries), 96, 48, 16
    columns = (heads + 2 * kv_heads) * size
    caches = [paged(make, keys, kv_heads * size, block_size, dtype) for _ in range(layers)]
    table = caches[0][2]
    slots = []
    for row, (count, length) in zip(table.tolist(), _LENGTHS, strict=True):
        slots += [row[p // block_size] * block_size + p % block_size for p in range(length - count, length)]
    blocks = caches[0][0].shape[0]
    weights: list[Any] = []
    for _ in range(layers):
        vector = {name: make.uniform((n,), dtype, 0.5, 1.5) for name, n in (("w", width), ("m", width), ("h", size))}
        bias = [make.normal((n,), dtype) if more else None for n in (columns, width, 2 * units, width)]
        norm = vector["h"] if more else None
        weights += [vector["w"], decoder.weight(make, width, columns, dtype), bias[0], norm, norm]
        weights += [decoder.weight(make, heads * size, width, dtype), bias[1], vector["m"]]
        weights += [decoder.weight(make, width, 2 * units, dtype), bias[2]]
        weights += [decoder.weight(make, units, width, dtype), bias[3]]
    shape = (blocks, block_size, kv_heads, size)
    values = (
        *(make.normal((tokens, width), dtype), weights, [1e-5, 1e-6, 1e-5] * layers),
        *(*decoder.tables(make, tokens, size, dtype), False),
        *([make.normal(shape, dtype) for _ in range(layers)], [make.normal(shape, dtype) for _ in range(layers)]),
        *(torch.tensor(slots), table, totals(queries), list(keys), heads, size**-0.5),
        [7 * layer if more else -1 for layer in range(layers)],
    )
    return dict(zip(_NAMES, values, strict=True))


def _cases() -> Iterator[Case]:
    make = Maker("decoder_stack")
    for dtype in FLOATS:
        for heads, kv_heads, size in ((6, 2, 64), (3, 1, 40)):
            for more in (False, True):
                given = _operands(make, dtype, heads, kv_heads, size, more)
                label = f"{heads}/{kv_heads}/{size}{', biases, norms, windows' if more else ''}, {dtype}"
                for form in decoder.formats(dtype):
                    yield Case(f"{label}{', NZ' if form else ''}", tuple(given.values()), form, dtype=dtype)
                for rows in ((10, 10), (0, 7)):
                    more_args = {"block_rows": rows, "soft_cap": 5.0}
                    yield Case(f"{label}, blocks of {rows}, capped", tuple(given.values()), more_args, dtype=dtype)


def _bad() -> Iterator[Bad]:
    given = _operands(Maker("decoder_stack, bad"), torch.bfloat16, 4, 2, 16)

    def call(**change: Any) -> tuple[Any, ...]:
        return tuple((given | change).values())

    weights = given["weights"]
    yield Bad("a weight too few", call(weights=weights[:-1]), names="weights")
    yield Bad("no projection", call(weights=[*weights[:-2], None, None]), names="weights")
    yield Bad("a window too few", call(window_left=[-1]), names="window_left")
    yield Bad("epsilons of one layer", call(epsilons=[1e-5] * 3), names="epsilons")
    yield Bad("caches of one layer", call(value_caches=given["value_caches"][:1]), names="value_caches")
    yield Bad("heads do not fit", call(num_heads=3), names="qkv_weight")
    yield Bad("lengths end elsewhere", call(cu_query_lens=[5, 6, 23]), names="cu_query_lens")
    yield Bad("blocks of less than none", call(block_rows=(0, -1)), names="block_rows")
    yield Bad("a slot past the cache", call(slot_mapping=given["slot_mapping"] + 999), names="slot_mapping")


CONTRACT = Contract(
    name="decoder_stack",
    schemas=("aloft::decoder_stack",),
    formula="layer by layer attention_input, paged_attention, mlp_block; the first layer without a residual.",
    dtypes=FLOATS,
    limits=(
        "weights: 12 a layer (input norm, QKV, bias, query norm, key norm, output, bias, MLP norm, gate and up, bias, "
        "down, bias; None where there is none); epsilons: 3 a layer; caches and window_left: one a layer",
        "as attention_input, paged_attention (causal, without sinks) and mlp_block",
    ),
    tolerance=decoder.tolerance(8),
    reference=without_format(decoder.decoder_stack),
    cases=_cases,
    bad=_bad,
    mutates=("key_caches", "value_caches"),
    prepare=decoder.packing(1),
    optional=True,
    source="aloft: the decoder layers of a step that is not captured, issued in one call",
)
