"""Tensors in internal formats: computed with as their values, never as the bytes they lie in."""

from __future__ import annotations

import itertools
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


def _as_given(t: torch.Tensor, packed: bool, transposed: bool) -> torch.Tensor:
    """`t` on the NPU, in FRACTAL_NZ where `packed`, stored with its last dimensions exchanged where `transposed`."""
    stored = (t.mT.contiguous() if transposed else t).npu()
    stored = torch_npu.npu_format_cast(stored, 29) if packed else stored
    return stored.mT if transposed else stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(5, 40, 24), (1, 16, 16), (17, 33, 1), (3, 130, 70)])
def test_products_of_the_legacy_door(dtype: torch.dtype, rows: int, inner: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randint(-3, 4, shape, generator=generator).to(dtype)
        for shape in ((rows, inner), (columns, inner), (columns,))
    )  # small integers: every sum is exact
    batch_x, batch_y = (
        torch.randint(-2, 3, shape, generator=generator).to(dtype) for shape in ((3, rows, inner), (3, inner, columns))
    )
    for packed, transposed in itertools.product([False, True], [False, True]):
        w = _as_given(weight, packed, transposed)
        for given in (x.npu(), torch_npu.npu_format_cast(x.npu(), 29)):
            torch.testing.assert_close(torch_npu.npu_linear(given, w).cpu(), x @ weight.mT, rtol=0, atol=0)
            torch.testing.assert_close(torch_npu.npu_linear(given, w, bias.npu()).cpu(), x @ weight.mT + bias)
        y = _as_given(batch_y, packed, transposed)
        for left in (_as_given(batch_x, packed, False), _as_given(batch_x, packed, True)):
            got = torch_npu.npu_bmmV2(left, y, [])
            torch.testing.assert_close(got.cpu(), batch_x @ batch_y, rtol=0, atol=0)
        first = _as_given(batch_y[:1].contiguous(), packed, transposed)
        torch.testing.assert_close(torch_npu.npu_bmmV2(batch_x.npu(), first, []).cpu(), batch_x @ batch_y[:1])


def test_gradients_of_the_legacy_door() -> None:
    x, y = torch.randint(-3, 4, (1, 3, 2)).float(), torch.randint(-3, 4, (1, 2, 3)).float()
    want = torch.autograd.functional.vjp(torch.bmm, (x, y), torch.ones(1, 3, 3))
    for left, right in itertools.product((2, NZ, NC1HWC0), repeat=2):
        a = torch_npu.npu_format_cast(x.half().npu(), left).requires_grad_()
        b = torch_npu.npu_format_cast(y.half().npu(), right).requires_grad_()
        out = torch_npu.npu_bmmV2(a, b, [])
        out.backward(torch.ones_like(out))
        for got, expected in zip((out.detach(), a.grad, b.grad), (want[0], *want[1]), strict=True):
            assert got is not None
            torch.testing.assert_close(got.cpu().float(), expected, rtol=0, atol=0)


def test_the_legacy_door_names_what_it_refuses() -> None:
    w = torch_npu.npu_format_cast(torch.randn(24, 40, device="npu"), 29)
    with pytest.raises(RuntimeError, match=r"MatMulV2.*inner dimensions differ"):
        torch_npu.npu_linear(torch.randn(5, 39, device="npu"), w)
    with pytest.raises(RuntimeError, match=r"MatMulV2.*different dtypes"):
        torch_npu.npu_linear(torch.randn(5, 40, device="npu").half(), w)
    with pytest.raises(RuntimeError, match="cannot broadcast"):
        torch_npu.npu_bmmV2(torch.randn(2, 5, 4, device="npu"), torch.randn(3, 4, 5, device="npu"), [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scratch_memory_of_the_host_library(dtype: torch.dtype) -> None:
    # The route computes these with oneDNN, which allocates scratch memory and frees it by itself.
    generator = torch.Generator().manual_seed(3)
    for rows, inner, columns in ((48, 70, 48), (300, 17, 200), (1, 256, 129), (257, 300, 31)):
        a, b = torch.randn(rows, inner, generator=generator), torch.randn(inner, columns, generator=generator)
        a, b = (a / inner**0.5).to(dtype), b.to(dtype)
        want = (a.double() @ b.double()).to(dtype)
        for left in (torch_npu.npu_format_cast(a.npu(), NZ), torch_npu.npu_format_cast(a.mT.contiguous().npu(), NZ).mT):
            torch.testing.assert_close((left @ b.npu()).cpu(), want, rtol=2e-2, atol=2e-2)
        images, weight = torch.randn(2, 3, rows, 9, generator=generator).to(dtype), torch.randn(5, 3, 3, 3).to(dtype)
        got = torch.nn.functional.conv2d(images.npu(), weight.npu(), padding=1)
        want = torch.nn.functional.conv2d(images.double(), weight.double(), padding=1).to(dtype)
        torch.testing.assert_close(got.cpu(), want, rtol=2e-2, atol=4e-2)
