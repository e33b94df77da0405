"""aloft::paged_attention on the virtual NPU against its float64 reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops import attention

TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 3e-6}
OP = torch.ops.aloft.paged_attention
Q_LENS, KV_LENS = [1, 7, 130, 0, 1, 3], [300, 7, 513, 4, 129, 0]
TOTAL = torch.tensor(Q_LENS).cumsum(0).tolist()


def operands(hq: int, hkv: int, d: int, size: int, dtype: torch.dtype, d_v: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(hq * d + size)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    per = -(-max(KV_LENS) // size)
    table = torch.randperm(len(KV_LENS) * per, generator=generator).view(len(KV_LENS), per).to(torch.int32)
    key, value = make(table.numel() + 1, size, hkv, d), make(table.numel() + 1, size, hkv, d_v or d)
    key[-1], value[-1] = math.nan, math.nan
    for row, n in zip(table, KV_LENS, strict=True):
        row[-(-n // size) :] = table.numel()
    return {
        "query": make(TOTAL[-1], hq, d),
        "key_cache": key,
        "value_cache": value,
        "block_table": table,
        "cu_query_lens": TOTAL,
        "kv_lens": KV_LENS,
        "num_kv_heads": hkv,
        "scale": d**-0.5,
    }


def on_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}


def check(kwargs: dict[str, Any]) -> torch.Tensor:
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in kwargs.items()}
    want, want_lse = attention.paged(**wide, return_lse=True)
    out, lse = (t.cpu() for t in OP(**on_device(kwargs), return_lse=True))
    assert out.dtype == kwargs["query"].dtype and out.shape == want.shape and lse.shape == want_lse.shape
    assert (out.double() - want).abs().max() <= TOLERANCE[out.dtype] * max(1.0, want.abs().max().item())
    assert ((lse.double() == want_lse) | ((lse - want_lse).abs() <= 3e-6 * want_lse.abs().clamp(min=1))).all()
    return out


@pytest.mark.parametrize(
    ("hq", "hkv", "d", "size", "dtype"),
    [
        (9, 3, 64, 128, torch.float32),
        (4, 4, 33, 16, torch.bfloat16),
        (8, 1, 1, 5, torch.float32),
        (8, 2, 256, 64, torch.float16),
        (6, 3, 80, 128, torch.bfloat16),
        (2, 1, 512, 32, torch.float32),
    ],
)
def test_forms(hq: int, hkv: int, d: int, size: int, dtype: torch.dtype) -> None:
    kwargs = operands(hq, hkv, d, size, dtype)
    check(kwargs)
    check({**kwargs, "causal": False, "window_left": 5})
    check({**kwargs, "window_left": 0})
    check({**kwargs, "soft_cap": 3.0, "window_left": 140})
    check({**kwargs, "sinks": torch.linspace(-2, 4, hq)})
    flat = {k: kwargs[k].flatten(2) for k in ("key_cache", "value_cache")}
    assert torch.equal(check({**kwargs, **flat}), check(kwargs))


def test_value_head_size_and_strides() -> None:
    kwargs = operands(4, 2, 48, 16, torch.float32, d_v=20)
    plain = check(kwargs)
    both = torch.cat([kwargs["key_cache"], kwargs["value_cache"]], -1).transpose(1, 2).contiguous().npu()
    key, value = both.transpose(1, 2).split([48, 20], -1)
    query = torch.cat([kwargs["query"], kwargs["query"]], -1).npu()[..., :48]
    out = torch.full((TOTAL[-1], 4, 40), 7.0).npu()
    views = on_device(kwargs) | {"key_cache": key, "value_cache": value, "query": query}
    result, lse = OP(**views, out=out[..., :20])
    assert result.data_ptr() == out.data_ptr() and lse.shape == (0,)
    assert torch.equal(result.cpu(), plain) and (out[..., 20:].cpu() == 7).all()


def test_meta_shapes() -> None:
    kwargs = operands(4, 2, 48, 16, torch.bfloat16, d_v=20)
    meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    out, lse = OP(**meta, return_lse=True)
    assert out.shape == (TOTAL[-1], 4, 20) and out.dtype == torch.bfloat16
    assert lse.shape == (TOTAL[-1], 4) and lse.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_query_lens": [*TOTAL[:-1], TOTAL[-1] + 1]}, "last of cu_query_lens"),
        ({"cu_query_lens": [5, 4, *TOTAL[2:]]}, "cu_query_lens decreases"),
        ({"kv_lens": KV_LENS[:-1]}, "one a sequence"),
        ({"kv_lens": [9999, *KV_LENS[1:]]}, "kv_lens"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"window_left": -2}, "window_left"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"sinks": torch.zeros(3)}, "sinks"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], message: str) -> None:
    kwargs = operands(4, 2, 16, 128, torch.float32)
    with pytest.raises(ValueError, match=message):
        OP(**on_device({**kwargs, **change}))


def test_wrong_operands() -> None:
    kwargs = operands(4, 2, 16, 128, torch.float32)
    with pytest.raises(ValueError, match="dtype"):
        OP(**on_device({**kwargs, "key_cache": kwargs["key_cache"].half()}))
    with pytest.raises(ValueError, match="block_table"):
        OP(**on_device({**kwargs, "block_table": kwargs["block_table"].long()}))
    with pytest.raises(RuntimeError, match=r"block_table\[0\]\[1\] is 99"):
        table = kwargs["block_table"].clone()
        table[0, 1] = 99
        OP(**on_device({**kwargs, "block_table": table}))[0].cpu()
