"""Selection operators on the npu equal those on the CPU: values, indices, out= forms, gradients, errors."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Work on another thread reports a bad index when the device is waited for, and leaves its stream broken: as hardware.
reports_at_once = pytest.mark.skipif(
    os.environ.get("ALOFT_STREAMS", "inline") != "inline", reason="asynchronous streams report errors later"
)
NAN, INF = float("nan"), float("inf")


def _make(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -40, 40, shape, generator=generator).to(dtype)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _to(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _same(call: Callable[..., Any], *args: Any, tolerance: float = 0.0) -> None:
    want = _tensors(call(*args))
    got = _tensors(call(*(_to(arg, "npu") for arg in args)))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.device.type == "npu" and a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _same_error(call: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(Exception) as want:
        call(*args)
    with pytest.raises(type(want.value)):
        call(*(_to(arg, "npu") for arg in args))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_sort(dtype: torch.dtype) -> None:
    for shape, dim, descending in itertools.product([(7,), (3, 40), (2, 300, 3), (0, 4), ()], [0, -1], [False, True]):
        x = _make(shape, dtype)
        _same(lambda t, d=dim, r=descending: t.sort(dim=d, descending=r, stable=True), x)
    _same(lambda t: t.argsort(dim=0, stable=True), _make((5, 6), dtype).t())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    for shape, dim, keep in itertools.product([(7,), (3, 40), (2, 300, 3), ()], [0, -1], [False, True]):
        x = _make(shape, dtype)
        _same(lambda t, d=dim, k=keep: t.argmax(d, k), x)
        _same(lambda t, d=dim, k=keep: t.argmin(d, k), x)
        _same(lambda t, d=dim, k=keep: t.max(d, k).values, x)
        _same(lambda t, d=dim, k=keep: t.min(d, k).values, x)
    _same(lambda t: t.argmax(), _make((6, 7), dtype).t())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_topk(dtype: torch.dtype) -> None:
    for shape, k, dim in [((50,), 3, 0), ((3, 40), 7, -1), ((2, 300, 3), 33, 1), ((0, 5), 2, 1), ((4, 9), 9, 1)]:
        x = _make(shape, dtype)
        for largest in (True, False):
            _same(lambda t, k=k, d=dim, b=largest: t.topk(k, d, b).values, x)
            values, indices = x.npu().topk(k, dim, largest)
            assert torch.equal(x.gather(dim, indices.cpu()), values.cpu())


@pytest.mark.parametrize("n", [40, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_special_values(dtype: torch.dtype, n: int) -> None:
    x = _make((4, n), dtype)
    x[0, 5], x[0, 30], x[1, 3], x[1, 4], x[2, :] = NAN, NAN, INF, -INF, 0.0
    x[2, 1::2] = -0.0
    x[3, n // 2 :] = NAN
    for call in (torch.argmax, torch.argmin):
        _same(lambda t, f=call: f(t, -1), x)
    for descending in (False, True):
        _same(lambda t, r=descending: t.sort(descending=r, stable=True), x)
        _same(lambda t, r=descending: t.topk(n - 1, 1, r).values, x)
        _same(lambda t, r=descending: t.topk(4, 1, r).values, x)
    _same(lambda t: torch.softmax(t, 0), x, tolerance=1e-2)
    _same(lambda t: t.cumsum(0), x)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_cumsum(dtype: torch.dtype) -> None:
    for shape, dim in [((7,), 0), ((3, 40), -1), ((2, 30, 70), 1), ((0, 4), 0), ((), 0)]:
        tolerance = 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6
        _same(lambda t, d=dim: t.cumsum(d), _make(shape, dtype), tolerance=tolerance)
    _same(lambda t: t.cumsum(1, dtype=torch.float32), _make((3, 40), dtype), tolerance=1e-5)
    _same(lambda t: t.cumsum(0, dtype=torch.int64), _make((3, 40), dtype).t())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_indexing(dtype: torch.dtype) -> None:
    x = _make((5, 6, 7), dtype)
    for dim in (0, 1, -1):
        index = torch.randint(0, x.size(dim), (9,))
        _same(lambda t, i, d=dim: t.index_select(d, i), x, index)
        _same(lambda t, i, d=dim: t.index_select(d, i), x.mT.contiguous().mT, index.int())
        place = torch.randint(0, x.size(dim), (5, 6, 7)).narrow(0, 0, 4)
        _same(lambda t, i, d=dim: t.gather(d, i), x, place)
        order = torch.rand(5, 6, 7).argsort(dim)
        source = _make((5, 6, 7), dtype, 1)
        _same(lambda t, i, s, d=dim: t.scatter(d, i, s), x, order, source)
        _same(lambda t, i, s, d=dim: t.clone().scatter_(d, i, s), x, order, source)
        _same(lambda t, i, d=dim: t.scatter(d, i, 1), x, order)
        _same(lambda t, i, d=dim: t.clone().scatter_(d, i, 1), x, order)
        if dtype != torch.bool:
            _same(lambda t, i, s, d=dim: t.scatter_add(d, i, s), x, order, source)
            _same(lambda t, i, s, d=dim: t.clone().scatter_add_(d, i, s), x, order, source)
            _same(lambda t, i, s, d=dim: t.scatter_reduce(d, i, s, "amax"), x, order, source)


def test_out_forms() -> None:
    x = _make((6, 50), torch.float32)
    index = torch.randint(0, 6, (8,))
    wide = torch.randint(0, 50, (6, 9))
    calls: list[Callable[[torch.Tensor, str], Any]] = [
        lambda t, d: torch.argmax(t, 1, out=torch.empty(0, dtype=torch.int64, device=d)),
        lambda t, d: torch.argmax(t, 1, out=torch.empty(12, dtype=torch.int64, device=d)[::2]),
        lambda t, d: torch.sort(t, 1, out=(torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d))),
        lambda t, d: torch.topk(t, 4, 1, out=(torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d))),
        lambda t, d: torch.cumsum(t, 1, out=torch.empty(50, 6, device=d).t()),
        lambda t, d: torch.index_select(t, 0, index.to(d), out=torch.empty(8, 50, device=d)),
        lambda t, d: torch.gather(t, 1, wide.to(d), out=torch.empty(6, 9, device=d)),
        lambda t, d: torch.softmax(t, 1, out=torch.empty(6, 50, device=d)),
    ]
    for number, call in enumerate(calls):
        for a, b in zip(_tensors(call(x.npu(), "npu")), _tensors(call(x, "cpu")), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6, msg=f"call {number}")


def test_in_place_sort_of_its_own_operand() -> None:
    x = _make((3, 400), torch.float32)
    y, indices = x.npu(), torch.empty(3, 400, dtype=torch.int64, device="npu")
    torch.sort(y, dim=1, stable=True, out=(y, indices))
    want = x.sort(dim=1, stable=True)
    assert torch.equal(y.cpu(), want.values) and torch.equal(indices.cpu(), want.indices)


@pytest.mark.parametrize("log", [False, True])
def test_gradients(log: bool) -> None:
    function = torch.log_softmax if log else torch.softmax
    x = _make((4, 33), torch.float32)
    weight = _make((4, 33), torch.float32, 1)
    a, b = x.clone().requires_grad_(), x.npu().requires_grad_()
    (function(a, -1) * weight).sum().backward()
    (function(b, -1) * weight.npu()).sum().backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-5, atol=1e-6)


def test_gather_and_index_gradients() -> None:
    x, index = _make((4, 33), torch.float32), torch.randint(0, 33, (4, 50))
    a, b = x.clone().requires_grad_(), x.npu().requires_grad_()
    a.gather(1, index).square().sum().backward()
    b.gather(1, index.npu()).square().sum().backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-5, atol=1e-5)


@reports_at_once
def test_errors_have_the_type_they_have_on_the_cpu() -> None:
    x, index = _make((4, 8), torch.float32), torch.zeros(4, 3, dtype=torch.int64)
    calls: list[Callable[..., Any]] = [
        lambda t: torch.softmax(t, 2),
        lambda t: t.argmax(3),
        lambda t: t[:, :0].argmax(1),
        lambda t: t.sort(dim=-3),
        lambda t: t.topk(9, 1),
        lambda t: t.topk(-1, 1),
        lambda t: t.cumsum(2),
    ]
    for call in calls:
        _same_error(call, x)
    for call in (
        lambda t, i: t.gather(2, i),
        lambda t, i: t.gather(1, i.float()),
        lambda t, i: t.gather(1, i[0]),
        lambda t, i: t.gather(1, i + 8),
        lambda t, i: t.gather(1, i - 1),
        lambda t, i: t.scatter(1, i, t.double()),
        lambda t, i: t.scatter(1, i + 8, t),
        lambda t, i: t.scatter_add(1, i - 1, t),
    ):
        _same_error(call, x, index)


@reports_at_once
def test_a_refused_scatter_changes_nothing() -> None:
    x = _make((4, 8), torch.float32).npu()
    before = x.cpu()
    index = torch.zeros(4, 8, dtype=torch.int64)
    index[3, 7] = 8
    with pytest.raises(RuntimeError, match="index 8 is out of bounds"):
        x.scatter_(1, index.npu(), torch.ones(4, 8, device="npu"))
    assert torch.equal(x.cpu(), before)


def test_nine_dimensions() -> None:
    x = _make((1, 2, 1, 2, 1, 2, 1, 2, 3), torch.float32)
    _same(lambda t: t.sort(dim=-1, stable=True), x)
    _same(lambda t: torch.softmax(t, -1), x, tolerance=1e-6)


def test_internal_formats() -> None:
    import torch_npu

    config = torch.npu.config  # type: ignore[attr-defined]
    x, index = _make((32, 48), torch.float16), torch.randint(0, 32, (32, 5))
    config.allow_internal_format = True
    try:
        cast = torch_npu.npu_format_cast(x.npu().clone(), 29)
        assert torch_npu.get_npu_format(cast) == 29
        places = index.npu()
        for function in (torch.argmax, torch.sort, torch.cumsum):
            for got, want in zip(_tensors(function(cast, 1)), _tensors(function(x, 1)), strict=True):
                torch.testing.assert_close(got.cpu(), want, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(torch.softmax(cast, 1).cpu(), torch.softmax(x, 1), rtol=1e-2, atol=1e-4)
        assert torch.equal(cast.gather(1, places).cpu(), x.gather(1, index))
        assert torch.equal(cast.index_select(0, places[:, 0]).cpu(), x.index_select(0, index[:, 0]))
        assert torch.equal(cast.topk(3).values.cpu(), x.topk(3).values)
        assert torch.equal(cast.scatter_(1, places, 1.0).cpu(), x.scatter_(1, index, 1.0))
    finally:
        config.allow_internal_format = False
