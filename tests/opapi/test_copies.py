"""Copies, casts, fills and look-ups are exact for every dtype and layout."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch_npu  # noqa: F401

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


@pytest.mark.parametrize("source", FLOATS + INTEGERS)
def test_casts(source: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(5, 7) * 3).to(source)
    for target in FLOATS + INTEGERS:
        if target == torch.uint8 and source.is_floating_point:
            x = x.abs()  # a negative float has no defined uint8
        assert torch.equal(x.npu().to(target).cpu(), x.to(target)), target
        got, want = torch.zeros(7, 10, dtype=target).npu(), torch.zeros(7, 10, dtype=target)
        got.t()[::2].copy_(x.npu())
        want.t()[::2].copy_(x)
        assert torch.equal(got.cpu(), want), target


def test_special_values_survive() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 65504.0, 65520.0, 3.4e38, 1e-7])
    for source, target in itertools.product(FLOATS, FLOATS):
        got, want = x.to(source).npu().to(target).cpu(), x.to(source).to(target)
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(), want.nan_to_num())
        assert torch.equal(got.signbit(), want.signbit())


def test_copies_between_layouts() -> None:
    torch.manual_seed(0)
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.complex128):
        x = (torch.randn(3, 4, 5) * 50).to(dtype)
        assert torch.equal(x.npu().permute(2, 0, 1).contiguous().cpu(), x.permute(2, 0, 1))
        assert torch.equal(x.npu()[:, ::2, 1:].contiguous().cpu(), x[:, ::2, 1:])
        assert torch.equal(x.npu()[None].expand(2, 3, 4, 5).contiguous().cpu(), x[None].expand(2, 3, 4, 5))
        assert torch.equal(x[:0].npu().transpose(0, 2).contiguous().cpu(), x[:0].transpose(0, 2))


def test_large_copies_are_cut_into_pieces() -> None:
    x = torch.randn(1000, 1200)
    assert torch.equal(x.npu().clone().cpu(), x)
    assert torch.equal(x.npu().t().contiguous().cpu(), x.t())
    assert torch.equal(x.npu()[:, 7:].bfloat16().cpu(), x[:, 7:].bfloat16())


def test_fills() -> None:
    x = torch.empty(3, 4).npu()
    x.zero_()
    x[:, 1] = 7
    x[0].fill_(torch.tensor(3.0))
    x[2, 2:].fill_(-2.5)
    assert x.cpu().tolist() == [[3, 3, 3, 3], [0, 7, 0, 0], [0, 7, -2.5, -2.5]]
    for dtype in FLOATS + INTEGERS:
        assert torch.equal(torch.full((2, 3), 1, dtype=dtype).npu().cpu(), torch.ones(2, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_embedding(dtype: torch.dtype) -> None:
    weight, rows = (torch.randn(50, 33) * 20).to(dtype), torch.randint(0, 50, (3, 4))
    look_up = torch.nn.functional.embedding
    assert torch.equal(look_up(rows.npu(), weight.npu()).cpu(), look_up(rows, weight))
    assert torch.equal(look_up(rows.int().npu(), weight.npu()).cpu(), look_up(rows, weight))
    columns = weight.t().contiguous().npu().t()
    assert torch.equal(look_up(rows.npu(), columns).cpu(), look_up(rows, weight))
    for row in (50, -1):
        with pytest.raises((RuntimeError, IndexError), match=f"{row}|out of range"):
            look_up(torch.tensor([0, row]).npu(), weight.npu())
