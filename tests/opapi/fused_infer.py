"""What the tests of npu_fused_infer_attention_score share: calls, and their float64 reference."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch_npu  # noqa: F401

from aloft.ops import attention

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TOLERANCE = {BF16: 2**-8, F16: 2**-11, F32: 3e-6}
TRIANGLE = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1)
FIA = torch.ops.npu.npu_fused_infer_attention_score


def make(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def on_device(value: Any) -> Any:
    return value.npu() if isinstance(value, torch.Tensor) else value


def run(*args: Any, op: Any = FIA, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = op(*map(on_device, args), **{k: on_device(v) for k, v in kwargs.items()})
    return out.cpu(), lse.cpu()


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def check(*args: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the operator and compares; the log-sum-exp too, when asked for."""
    want, want_lse = attention.fused_infer(*map(wide, args), **{k: wide(v) for k, v in kwargs.items()})
    sink = kwargs.pop("learnable_sink", None)
    if sink is None:
        out, lse = run(*args, **kwargs)
    else:
        names = {
            "actual_seq_lengths": "actual_seq_qlen",
            "actual_seq_lengths_kv": "actual_seq_kvlen",
            "num_heads": "num_query_heads",
            "scale": "softmax_scale",
            "softmax_lse_flag": "return_softmax_lse",
        }
        kwargs = {names.get(k, k): v for k, v in kwargs.items()}
        op = torch.ops.npu.npu_fused_infer_attention_score_v2
        out, lse = run(*args, op=op, learnable_sink=sink, **kwargs)
    assert out.shape == want.shape and out.dtype == args[0].dtype
    bound = TOLERANCE[args[0].dtype] * max(1.0, want.abs().max().item() if want.numel() else 0.0)
    assert out.numel() == 0 or (out.double() - want).abs().max() <= bound
    if want_lse.numel():
        assert lse.shape == want_lse.shape and lse.dtype == F32
        same = (lse.double() == want_lse) | ((lse.double() - want_lse).abs() <= 3e-6 * want_lse.abs().clamp(min=1))
        assert same.all()
    else:
        assert lse.shape == (0,)
    return out, lse


def paged(lengths: list[int], heads: int, d: int, size: int, dtype: torch.dtype = BF16, d_v: int = 0) -> dict[str, Any]:
    """A cache whose blocks lie in no order, with a spare block full of NaN that nothing may read."""
    per = max(1, max((n + size - 1) // size for n in lengths))
    used = len(lengths) * per
    generator = torch.Generator().manual_seed(used)
    table = torch.randperm(used, generator=generator).view(len(lengths), per).to(torch.int32)
    key = make(used + 1, size, heads * d, dtype=dtype, seed=1)
    value = make(used + 1, size, heads * (d_v or d), dtype=dtype, seed=2)
    key[used], value[used] = math.nan, math.nan
    for row, n in zip(table, lengths, strict=True):
        row[(n + size - 1) // size :] = used
        if n % size:  # what lies behind the last token is garbage on real caches
            key[row[n // size], n % size :] = math.nan
            value[row[n // size], n % size :] = math.nan
    return {"key": key, "value": value, "block_table": table, "block_size": size}
