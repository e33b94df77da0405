"""The real ATB plugin of torch_npu on our libatb."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch_npu

from aloft.ops.contracts._npu_rotary_embedding import CACHE, WIDTH


@pytest.mark.parametrize("neox", [True, False])
def test_rotary_embedding(neox: bool) -> None:
    # the plugin keeps the tables of the first cache of the process: every call here uses the same one
    torch.manual_seed(1)
    positions = torch.tensor([[3, 1], [4, 49]])
    query, key = torch.randn(4, 3 * WIDTH).bfloat16(), torch.randn(4, WIDTH).bfloat16()
    cos, sin = (t[:, None] for t in CACHE.double()[positions.flatten()].chunk(2, -1))
    on_device = query.npu(), key.npu()
    torch_npu._npu_rotary_embedding(positions.npu(), *on_device, WIDTH, CACHE.npu(), neox)
    for before, after in zip((query, key), on_device, strict=True):
        x = before.double().view(4, -1, WIDTH)
        a, b = x.chunk(2, -1) if neox else (x[..., ::2], x[..., 1::2])
        pair = a * cos - b * sin, b * cos + a * sin
        want = torch.cat(pair, -1) if neox else torch.stack(pair, -1).flatten(-2)
        torch.testing.assert_close(after.cpu().double().view_as(want), want, rtol=2**-8, atol=1e-6)


# A process of its own: the plugin keeps the tables of the first cache.
WIDE_TABLES = """
import torch, torch_npu
torch.manual_seed(2)
cache = torch.randn(50, 64)
positions, query, key = torch.tensor([3, 1, 49]), torch.randn(3, 128).half(), torch.randn(3, 64).half()
cos, sin = cache.double()[positions][:, None].chunk(2, -1)
on_device = query.npu(), key.npu()
torch_npu._npu_rotary_embedding(positions.npu(), *on_device, 64, cache.npu(), False)
for before, after in zip((query, key), on_device):
    x = before.double().view(3, -1, 64)
    a, b = x[..., ::2], x[..., 1::2]
    want = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    torch.testing.assert_close(after.cpu().double().view_as(want), want, rtol=2**-9, atol=2**-9)
print("turned")
"""


def test_float32_tables_go_with_16_bit_queries() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WIDE_TABLES],
        env={**os.environ, "ALOFT_CONTRACT": "strict"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "turned\n", done.stderr


def test_reshape_and_cache_in_fractal_nz() -> None:
    torch.npu.config.allow_internal_format = True
    try:
        key, value = torch.randn(3, 2, WIDTH).half(), torch.randn(3, 2, WIDTH).half()
        slots, shape = [37, -1, 4], (3, 2 * WIDTH // 16, 16, 16)
        caches = [torch_npu.npu_format_cast(torch.zeros(shape).half().npu(), 29) for _ in range(2)]
        torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), *caches, torch.tensor(slots, dtype=torch.int32).npu())
        for cache, tokens in zip(caches, (key, value), strict=True):
            rows = cache.cpu().permute(0, 2, 1, 3).reshape(48, 2, WIDTH)
            assert torch.equal(rows[37], tokens[0])
            assert torch.equal(rows[4], tokens[2])
            assert int(rows.any(-1).any(-1).sum()) == 2
    finally:
        torch.npu.config.allow_internal_format = False


def test_what_is_missing_says_so() -> None:
    q, cache = torch.randn(2, 4, WIDTH).half().npu(), torch.zeros(3, 16, 2, WIDTH).half().npu()
    lengths, table = torch.ones(2, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32).npu()
    with pytest.raises(RuntimeError, match="PagedAttentionOperation is not implemented"):
        torch_npu._npu_paged_attention(q, cache, cache, 2, 4, 0.1, table, lengths, torch.empty_like(q))
