"""Contract of aloft::attention_input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families import decoder
from aloft.ops.generate import Maker
from aloft.ops.products import without_format
from aloft.ops.rounding import FLOATS

_NAMES = (
    *("hidden", "residual", "norm_weight", "norm_eps", "qkv_weight", "qkv_bias", "cos", "sin", "interleaved"),
    *("key_cache", "value_cache", "slot_mapping", "num_heads"),
)
#: tokens, query heads, key heads, head size, rotary width, hidden width
_SHAPES = (
    (7, 6, 2, 64, 64, 192),
    (1, 1, 1, 128, 128, 96),
    (33, 4, 1, 80, 40, 100),
    (5, 3, 3, 96, 96, 64),
    (3, 2, 1, 256, 256, 48),
    (9, 5, 5, 18, 6, 33),
    (0, 2, 1, 16, 16, 32),
)


def _operands(make: Maker, shape: tuple[int, ...], dtype: torch.dtype, interleaved: bool = False) -> dict[str, Any]:
    tokens, heads, kv_heads, size, turned, width = shape
    blocks, block_size = 5, 16
    slots = make.permutation(blocks * block_size)[:tokens].clone()
    slots[1::4] = -1
    cos, sin = decoder.tables(make, tokens, turned, dtype)
    columns = (heads + 2 * kv_heads) * size
    caches = [make.normal((blocks, block_size, kv_heads, size), dtype) for _ in range(2)]
    values = (
        *(make.normal((tokens, width), dtype), make.normal((tokens, width), dtype)),
        *(make.uniform((width,), dtype, 0.5, 1.5), 1e-5, decoder.weight(make, width, columns, dtype), None),
        *(cos, sin, interleaved, *caches, slots, heads),
    )
    return dict(zip(_NAMES, values, strict=True))


def _cases() -> Iterator[Case]:
    make = Maker("attention_input")
    for dtype in FLOATS:
        for shape in _SHAPES:
            given = _operands(make, shape, dtype)
            label = f"{shape}, {dtype}"
            for more in decoder.formats(dtype):
                yield Case(f"{label}{', NZ' if more else ''}", tuple(given.values()), more, dtype=dtype)
            given["residual"] = None
            given["qkv_bias"] = make.normal((given["qkv_weight"].shape[1],), dtype)
            given["slot_mapping"] = given["slot_mapping"].int()
            yield Case(f"{label}, first layer, bias, int32 slots", tuple(given.values()), dtype=dtype)
            given = _operands(make, shape, dtype, interleaved=True)
            norms = {f"{name}_norm_weight": make.uniform(shape[3:4], dtype, 0.5, 1.5) for name in "qk"}
            yield Case(f"{label}, interleaved, normed, blocks of 4", tuple(given.values()),
                       {**norms, "qk_norm_eps": 1e-5, "block_rows": 4}, dtype=dtype)  # fmt: skip
    whole = make.normal((5, 2, 16, 2, 64), torch.bfloat16)
    given = _operands(make, _SHAPES[0], torch.bfloat16)
    given |= {"key_cache": whole[:, 0], "value_cache": whole[:, 1].clone()}
    yield Case("cache with gaps between the blocks", tuple(given.values()), dtype=torch.bfloat16)
    turned = make.normal((5, 2, 16, 64), torch.bfloat16).transpose(1, 2)
    given |= {"key_cache": turned, "value_cache": turned.clone(memory_format=torch.preserve_format)}
    yield Case("heads outside of the block", tuple(given.values()), dtype=torch.bfloat16)


def _bad() -> Iterator[Bad]:
    given = _operands(Maker("attention_input, bad"), (6, 4, 2, 16, 16, 32), torch.bfloat16)

    def call(**change: Any) -> tuple[Any, ...]:
        return tuple((given | change).values())

    slots, cos, cache = given["slot_mapping"], given["cos"], given["key_cache"]
    yield Bad("hidden of three dimensions", call(hidden=given["hidden"][None]), names="hidden")
    yield Bad("integers", call(hidden=given["hidden"].int()), names="hidden")
    yield Bad("residual of another shape", call(residual=given["residual"][:5].clone()), names="residual")
    yield Bad("norm_weight too short", call(norm_weight=given["norm_weight"][:31].clone()), names="norm_weight")
    yield Bad("heads do not fit the weight", call(num_heads=3), names="qkv_weight")
    yield Bad("no heads", call(num_heads=0), names="num_heads")
    yield Bad("cos of five tokens", call(cos=cos[:5].clone()), names="cos")
    yield Bad("tables wider than a head", call(cos=cos.repeat(1, 1, 2), sin=cos.repeat(1, 1, 2)), names="cos")
    yield Bad("tables that differ", call(sin=cos[..., :4].clone()), names="sin")
    yield Bad("tables of float32", call(cos=cos.float()), names="cos")
    yield Bad("cache of another dtype", call(key_cache=cache.half()), names="key_cache")
    yield Bad("caches of two shapes", call(value_cache=cache[:4].clone()), names="value_cache")
    yield Bad("a slot too few", call(slot_mapping=slots[:5].clone()), names="slot_mapping")
    yield Bad("slots of float32", call(slot_mapping=slots.float()), names="slot_mapping")
    yield Bad("slot past the cache", call(slot_mapping=slots + 80), names="slot_mapping")
    yield Bad("norm of another width", call(), {"q_norm_weight": cos[0, 0, :8].clone()}, names="q_norm_weight")
    yield Bad("negative block", call(), {"block_rows": -3}, names="block_rows")


CONTRACT = Contract(
    name="attention_input",
    schemas=("aloft::attention_input",),
    formula="r = hidden + residual; [q, k, v] = rms_norm(r) @ qkv_weight + qkv_bias; q, k ← rope(rms_norm(q, k)); "
    "k, v → caches at slot_mapping; returns (q, r).",
    dtypes=FLOATS,
    limits=(
        "hidden [T, W]; cos, sin [T, 1, R / 2], R at most D: the first R elements of a head turn, as halves or "
        "interleaved pairs; norms of the heads may be left out",
        "caches [nb, bs, Hkv, D], last dimension contiguous; a negative slot is skipped, one past the cache refused",
        "r is empty without a residual",
        *decoder.LIMITS,
    ),
    tolerance=decoder.tolerance(2),
    reference=without_format(decoder.attention_input),
    cases=_cases,
    bad=_bad,
    prepare=decoder.packing(4),
    optional=True,
    source="aloft: a decoder layer in front of its attention, composed of npu_add_rms_norm, mm, npu_rms_norm, "
    "npu_rotary_mul and npu_scatter_pa_kv_cache on CANN",
)
