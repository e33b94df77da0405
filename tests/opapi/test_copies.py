"""Copies, casts, fills and look-ups are exact for every dtype and layout: the library's own functions (adapters
reach them inside other operators) and aten's, which the generic route serves."""

from __future__ import annotations

import itertools
from ctypes import byref, c_double, c_void_p

import pytest
import torch
import torch_npu  # noqa: F401
from aclnn_door import DTYPES, Door

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


@pytest.fixture(scope="module")
def door() -> Door:
    return Door()


@pytest.mark.parametrize("source", FLOATS + INTEGERS)
def test_casts_of_the_library(door: Door, source: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(5, 7) * 3).to(source)
    for target in FLOATS + INTEGERS:
        if target == torch.uint8 and source.is_floating_point:
            x = x.abs()  # a negative float has no defined uint8
        dense, spread = torch.zeros(5, 7, dtype=target), torch.zeros(7, 10, dtype=target)
        on_device, spread_on_device = dense.npu(), spread.npu()
        door.call("aclnnCast", x.npu(), DTYPES[target], on_device)
        assert torch.equal(on_device.cpu(), x.to(target)), target
        door.call("aclnnInplaceCopy", spread_on_device.t()[::2], x.npu())
        spread.t()[::2].copy_(x)
        assert torch.equal(spread_on_device.cpu(), spread), target


def test_float_to_integer_saturates(door: Door) -> None:
    x = torch.tensor([1e30, -1e30, float("nan"), float("inf"), -float("inf"), 127.9, -128.9])
    limits = {torch.int8: (-128, 127), torch.int32: (-(2**31), 2**31 - 1), torch.int64: (-(2**63), 2**63 - 1)}
    for target, (low, high) in limits.items():
        y = torch.zeros(7, dtype=target).npu()
        door.call("aclnnCast", x.npu(), DTYPES[target], y)
        assert y.cpu().tolist() == [high, low, 0, high, low, 127, -128]


def test_special_values_of_the_library(door: Door) -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 65504.0, 65520.0, 3.4e38, 1e-7])
    for source, target in itertools.product(FLOATS, FLOATS):
        y = torch.zeros(10, dtype=target).npu()
        door.call("aclnnCast", x.to(source).npu(), DTYPES[target], y)
        got, want = y.cpu(), x.to(source).to(target)
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(), want.nan_to_num())
        assert torch.equal(got[~want.isnan()].signbit(), want[~want.isnan()].signbit())


def test_copies_of_the_library(door: Door) -> None:
    torch.manual_seed(0)
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.complex128):
        x = (torch.randn(3, 4, 5) * 50).to(dtype)
        on_device = x.npu()
        for view, want in (
            (on_device.permute(2, 0, 1), x.permute(2, 0, 1)),
            (on_device[:, ::2, 1:], x[:, ::2, 1:]),
            (on_device[:, :, :1].expand(3, 4, 6), x[:, :, :1].expand(3, 4, 6)),
            (on_device[:0], x[:0]),
        ):
            y = torch.zeros(want.shape, dtype=dtype).npu()
            door.call("aclnnInplaceCopy", y, view)
            assert torch.equal(y.cpu(), want)
        y = torch.zeros(2, 3, 4, 5, dtype=dtype).npu()
        door.call("aclnnInplaceCopy", y, on_device)  # broadcast
        assert torch.equal(y.cpu(), x.expand(2, 3, 4, 5))
    x = torch.randn(6, 6)
    y = x.npu()
    door.call("aclnnInplaceCopy", y, y.t())  # all is read before anything is written
    assert torch.equal(y.cpu(), x.t())
    large = torch.randn(1000, 1200)
    for view, want in ((large.npu(), large), (large.npu().t(), large.t()), (large.npu()[:, 7:], large[:, 7:])):
        for dtype in (torch.float32, torch.bfloat16):
            y = torch.zeros(want.shape, dtype=dtype).npu()
            door.call("aclnnInplaceCopy", y, view)
            assert torch.equal(y.cpu(), want.to(dtype))
    with pytest.raises(RuntimeError, match=r"src has the shape \[1200\].*selfRef \[3\]"):
        door.call("aclnnInplaceCopy", torch.zeros(3).npu(), torch.zeros(1200).npu())


def test_fills_of_the_library(door: Door) -> None:
    value = c_void_p(door.opapi.aclCreateScalar(byref(c_double(3.0)), 11))
    for dtype in FLOATS + INTEGERS:
        x, three = torch.full((3, 4), 7).to(dtype).npu(), torch.full((), 3).to(dtype)
        door.call("aclnnInplaceZero", x[:, 1:3])
        door.call("aclnnInplaceOne", x[1])
        door.call("aclnnInplaceFillScalar", x[2, ::2], value)
        door.call("aclnnInplaceFillTensor", x[:1, 3:], three.npu())
        want = torch.tensor([[7, 0, 0, 3], [1, 1, 1, 1], [3, 0, 3, 7]]).to(dtype)
        assert torch.equal(x.cpu(), want), dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_embedding_of_the_library(door: Door, dtype: torch.dtype) -> None:
    weight, rows = (torch.randn(50, 33) * 20).to(dtype), torch.randint(0, 50, (3, 4))
    for table in (weight.npu(), weight.t().contiguous().npu().t()):
        for index in (rows, rows.int()):
            out = torch.zeros(3, 4, 33, dtype=dtype).npu()
            door.call("aclnnEmbedding", table, index.npu(), out)
            assert torch.equal(out.cpu(), weight[rows])
    out = torch.zeros(2, 33, dtype=dtype).npu()
    for row in (50, -1):
        with pytest.raises(RuntimeError, match=f"indices holds {row}, weight has 50 rows"):
            door.call("aclnnEmbedding", weight.npu(), torch.tensor([0, row]).npu(), out)
            torch.npu.synchronize()  # asynchronous streams report it here


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
        assert torch.equal(got[~want.isnan()].signbit(), want[~want.isnan()].signbit())


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
