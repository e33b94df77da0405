"""The composites behind aloft::compress_kv and aloft::fp8_attention on CANN, and what the native ones promise."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops import fp8_cache
from aloft.ops.compare import compare
from aloft.ops.contracts import compress_kv, fp8_attention
from aloft.ops.execute import reference_outputs

WRITTEN = list(compress_kv.CONTRACT.cases())
READ = list(fp8_attention.CONTRACT.cases())


@pytest.mark.parametrize("case", WRITTEN[::3], ids=lambda case: case.label)
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_compress_composite(case, device):
    args = [value.to(device, copy=True) for value in case.args]
    want = [value.clone() for value in case.args]
    fp8_cache.compress_kv(*args)
    compress_kv.CONTRACT.reference(*want)
    for got, expected in zip(args[2:6], want[2:6], strict=True):
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("case", READ[::5], ids=lambda case: case.label)
def test_attention_composite(case):
    def move(value):
        return value.npu() if isinstance(value, torch.Tensor) else value

    got = fp8_cache.fp8_attention(*map(move, case.args), **{k: move(v) for k, v in case.kwargs.items()})
    (want,) = reference_outputs(fp8_attention.CONTRACT, case).outputs
    comparison = compare(got.cpu(), want, fp8_attention.CONTRACT.tolerance_of(case, got.dtype, 0))
    assert not comparison.problem, comparison.problem


def test_a_token_that_is_not_finite_shows():
    key = torch.randn(40, 2, 64).bfloat16()
    key[3, 1, 5] = float("inf")
    for rows in (1, 20):  # both forms of the kernel
        caches = [torch.zeros(3, 16, 2, 64, dtype=torch.uint8).npu() for _ in range(2)]
        caches += [torch.zeros(3, 16, dtype=torch.int8).npu() for _ in range(2)]
        torch.ops.aloft.compress_kv(key.npu(), key.abs().nan_to_num(1, 1, 1).npu(), *caches, torch.arange(40).npu())
        table = torch.arange(3, dtype=torch.int32)[None].npu()
        query = torch.randn(rows, 4, 64).bfloat16().npu()
        out = torch.ops.aloft.fp8_attention(query, *caches, table, [rows], [40], 2, 0.125).cpu()
        assert out.isnan().all()


def test_the_composite_reads_nothing_of_what_no_row_sees():
    """Blocks in front of a window may have been given away: whatever they hold."""
    key = torch.randn(40, 2, 16)
    caches = [torch.zeros(5, 8, 2, 16, dtype=torch.uint8) for _ in range(2)]
    caches += [torch.zeros(5, 8, dtype=torch.int8) for _ in range(2)]
    fp8_cache.compress_kv(key, -key, *caches, torch.arange(40))
    table = torch.arange(5, dtype=torch.int32)[None]
    query = torch.randn(3, 4, 16)

    def attended(caches, recent):
        made = [*caches, table, [3], [40], 2, 0.25, 4, *recent, table]
        return fp8_cache.fp8_attention(query, *made, window_left=12)

    recent = [key.view(5, 8, 2, 16), key.view(5, 8, 2, 16) * 2]
    want = attended(caches, recent)
    for exponents in caches[2:]:
        exponents.flatten()[: 40 - 3 - 12] = -128  # read as NaN
    recent = [x.clone() for x in recent]
    for x in recent:
        x.flatten(0, 1)[: 40 - 3 - 3] = torch.nan
    assert want.isfinite().all() and torch.equal(attended(caches, recent), want)


def test_bytes_do_not_depend_on_what_else_is_written():
    x = (torch.randn(300, 3, 64) * torch.exp2(torch.randn(300, 1, 1) * 4)).bfloat16().npu()
    slots = torch.arange(300).npu()

    def written(pieces):
        caches = [torch.zeros(10, 32, 3, 64, dtype=torch.uint8).npu() for _ in range(2)]
        caches += [torch.zeros(10, 32, dtype=torch.int8).npu() for _ in range(2)]
        for part in slots.split(pieces):
            torch.ops.aloft.compress_kv(x[part], -x[part], *caches, part)
        return [cache.cpu() for cache in caches]

    whole = written(300)
    for pieces in (1, 7, 128):
        assert all(map(torch.equal, written(pieces), whole))
    found = fp8_cache.decoded(whole[0], whole[2]).flatten(0, 1)[:300]
    error = (found - x.cpu().float()).abs()
    largest = x.cpu().float().abs().amax((1, 2), keepdim=True)
    assert (error <= 2.0**-4 * x.cpu().float().abs() + 2.0**-18 * largest).all()


def test_ensure_defines_the_operators_where_nothing_else_does():
    program = """
import torch
from aloft.ops import fp8_cache
assert not hasattr(torch.ops.aloft, "fp8_attention")
fp8_cache.ensure()
fp8_cache.ensure()
codes, exponents = torch.zeros(1, 4, 1, 4, dtype=torch.uint8), torch.zeros(1, 4, dtype=torch.int8)
caches = codes, codes.clone(), exponents, exponents.clone()
x = torch.ones(3, 1, 4)
torch.ops.aloft.compress_kv(x, x, *caches, torch.tensor([0, 1, -1]))
out, table = torch.empty(2, 2, 4), torch.zeros(1, 1, dtype=torch.int32)
result = torch.ops.aloft.fp8_attention(torch.ones(2, 2, 4), *caches, table, [2], [2], 1, 1.0, out=out)
assert result is out and out.eq(1).all()
"""
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
