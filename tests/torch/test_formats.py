"""Tensors in internal formats: computed with as their values, never as the bytes they lie in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch_npu

NZ, NC1HWC0, FRACTAL_Z = 29, 3, 4
CASES = [((5, 37), NZ), ((3, 20, 33), NZ), ((2, 3, 4, 5), NC1HWC0), ((2, 3, 4, 5), FRACTAL_Z), ((2, 17, 3, 3), NZ)]


@pytest.fixture(autouse=True)
def internal_formats() -> Iterator[None]:
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


def packed(shape: tuple[int, ...], fmt: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(shape).to(dtype)
    y = torch_npu.npu_format_cast(x.npu(), fmt)
    assert int(torch_npu.get_npu_format(y)) == fmt
    return x, y


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "fmt"), CASES, ids=str)
def test_values_are_read(shape: tuple[int, ...], fmt: int, dtype: torch.dtype) -> None:
    x, y = packed(shape, fmt, dtype)
    assert torch.equal(y.cpu(), x)
    assert torch.equal((y + 1).cpu(), x + 1)
    assert torch.equal(y.clone().cpu(), x)
    assert torch.equal(torch.cat([y, x.npu()]).cpu(), torch.cat([x, x]))
    assert torch.equal((y > 0).cpu(), x > 0)
    assert torch.equal(y.to(torch.float64).cpu(), x.double())
    assert y.sum().item() == pytest.approx(x.sum().item(), rel=1e-2, abs=1e-2)
    assert y.max().item() == x.max().item()
    assert torch.equal(torch_npu.npu_format_cast(y, 2).cpu(), x)
    assert int(torch_npu.get_npu_format(y)) == fmt


@pytest.mark.parametrize(("shape", "fmt"), CASES, ids=str)
def test_values_are_written(shape: tuple[int, ...], fmt: int) -> None:
    x, y = packed(shape, fmt, torch.float16)
    y.add_(1)
    assert torch.equal(y.cpu(), x + 1)
    y.copy_(x * 3)
    assert torch.equal(y.cpu(), x * 3)
    torch.mul(x.npu(), 2, out=y)
    assert torch.equal(y.cpu(), x * 2)
    y.zero_()
    assert not y.cpu().any()
    y.fill_(2.5)
    assert (y.cpu() == 2.5).all()
    target = torch.empty(shape, dtype=torch.float16, device="npu")
    y.copy_(x)
    assert torch.equal(target.copy_(y).cpu(), x)
    assert int(torch_npu.get_npu_format(y)) == fmt


def test_products_with_packed_weights() -> None:
    a = torch.randn(7, 40)
    w, packed_w = packed((40, 24), NZ, torch.float32)
    torch.testing.assert_close((a.npu() @ packed_w).cpu(), a @ w)
    torch.testing.assert_close(torch.nn.functional.linear(a.npu(), packed_w.t()).cpu(), a @ w)
    torch.testing.assert_close((a.double().npu() @ packed_w.double()).cpu(), a.double() @ w.double())


def test_formats_are_off_by_default() -> None:
    torch.npu.config.allow_internal_format = False
    x = torch.randn(4, 5).npu()
    y = torch_npu.npu_format_cast(x, NZ)
    assert torch.equal(y.cpu(), x.cpu())
