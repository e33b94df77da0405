"""Copies between every pair of places and kinds of tensors, and what makes tensors without computing."""

from __future__ import annotations

import copy
import gc
import io
import itertools

import pytest
import torch

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)  # fmt: skip
PLACES = ("cpu", "npu:0", "npu:1")


@pytest.mark.parametrize(("source", "target"), list(itertools.product(PLACES, PLACES)))
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copy_between_places_and_dtypes(source: str, target: str, non_blocking: bool) -> None:
    values = torch.tensor([[0, 1, 2], [3, 100, 7]])
    for from_dtype, to_dtype in itertools.product(DTYPES, DTYPES):
        if from_dtype.is_complex and not to_dtype.is_complex:
            continue
        want = torch.empty(2, 3, dtype=to_dtype).copy_(values.to(from_dtype))
        to = torch.empty(2, 3, dtype=to_dtype, device=target)
        assert to.copy_(values.to(from_dtype).to(source), non_blocking=non_blocking) is to
        torch.npu.synchronize()
        assert torch.equal(to.cpu(), want), (from_dtype, to_dtype)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(PLACES, PLACES)))
def test_copy_of_strided_and_broadcast_tensors(source: str, target: str) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for view in (lambda t: t.t(), lambda t: t[1:3, ::2], lambda t: t[2], lambda t: t[:, :1]):
        to = torch.zeros(6, 4, device=target).as_strided(view(base).shape, view(base).stride(), 0)
        to.copy_(view(base.to(source)))
        assert torch.equal(to.cpu(), view(base))
    broadcast = torch.zeros(3, 6, device=target).copy_(base[0].to(source))
    assert torch.equal(broadcast.cpu(), base[0].expand(3, 6))
    empty = torch.zeros(0, 3, device=target).copy_(torch.zeros(0, 3, device=source))
    assert empty.shape == (0, 3)
    with pytest.raises(RuntimeError):
        torch.zeros(2, 3, device=target).copy_(torch.zeros(4, 5, device=source))


def test_conjugate_and_negative_views() -> None:
    x = torch.randn(5, dtype=torch.complex64)
    assert torch.equal(x.npu().conj().cpu(), x.conj())
    assert torch.equal((x.npu().conj() * 2).cpu(), x.conj() * 2)
    assert torch.equal(x.npu().conj().imag.cpu(), x.conj().imag)
    to = torch.empty_like(x, device="npu").conj()
    to.copy_(x)
    assert torch.equal(to.cpu(), x)
    assert torch.equal(torch.view_as_real(x.npu()).cpu(), torch.view_as_real(x))


def test_pinned_memory() -> None:
    x = torch.randn(1000).pin_memory()
    assert x.is_pinned() and not torch.randn(3).is_pinned()
    assert torch.equal(x.npu(non_blocking=True).cpu(), x)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(x.npu() + 1, non_blocking=True)
    torch.npu.current_stream().synchronize()
    assert torch.equal(back, x + 1)


def test_conversions_name_their_device() -> None:
    x = torch.randn(3, 4, device="npu")
    assert x.to("cpu").device.type == "cpu"
    assert x.to(torch.float64).dtype == torch.float64
    assert x.double().device.type == "npu"
    assert x.to("npu:1").device.index == 1
    assert x.to("cpu", torch.float16).dtype == torch.float16
    assert x.to(x.device) is x
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert torch.zeros_like(x).device.index == 0
    assert x.new_ones(2).device == x.device
    assert x.new_empty(2, device="cpu").device.type == "cpu"
    assert x.new_tensor([1.0]).device == x.device
    assert torch.full((2,), 7, device="npu:1").device.index == 1
    assert torch.empty_strided((2, 3), (1, 2), device="npu").stride() == (1, 2)
    channels_last = torch.randn(1, 2, 3, 4, device="npu").to(memory_format=torch.channels_last)
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert (channels_last + 1).is_contiguous(memory_format=torch.channels_last)


def test_views_share_memory() -> None:
    x = torch.zeros(4, 6, device="npu")
    for view in (x.view(24), x.t(), x[1:], x.unfold(0, 2, 1), x.unsqueeze(0), x.diagonal(), x.expand(2, 4, 6),
                 x.split(2)[1], x.detach(), x.view(torch.int32), x.squeeze(), x.as_strided((2,), (1,), 3),
                 x.contiguous(), x.chunk(2)[0], x.movedim(0, 1), x.unbind()[2], x.narrow(0, 1, 2)):  # fmt: skip
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view.device == x.device
    x[1:3, ::2] = 5
    assert x.sum().item() == 30
    x.view(-1)[0] += 1
    assert x[0, 0].item() == 1
    assert not x.is_set_to(x.clone()) and x.is_set_to(x.view(4, 6))


def test_storages() -> None:
    x = torch.arange(6.0, device="npu")
    y = torch.empty(0, device="npu").set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.cpu().tolist() == [[2, 3], [4, 5]]
    x.resize_(10)
    assert x[:6].cpu().tolist() == list(range(6))
    z = torch.arange(4.0, device="npu")
    z.untyped_storage().resize_(0)
    assert z.untyped_storage().nbytes() == 0
    for use in (lambda: z + 1, lambda: z.fill_(1), lambda: z.cpu(), lambda: torch.ones(4).npu().copy_(z)):
        with pytest.raises(RuntimeError, match=r"has no memory: its storage was released|not allocated yet"):
            use()
    z.untyped_storage().resize_(16)
    assert z.fill_(2).cpu().tolist() == [2] * 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_saved_and_copied(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype).npu()
    file = io.BytesIO()
    torch.save({"x": x, "row": x[1]}, file)
    file.seek(0)
    back = torch.load(file)
    assert back["x"].device == x.device and torch.equal(back["x"].cpu(), x.cpu())
    assert back["row"].untyped_storage().data_ptr() == back["x"].untyped_storage().data_ptr()
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"
    other = copy.deepcopy(x)
    other.zero_()
    assert x.cpu()[1, 2].item() == torch.tensor(5).to(dtype).item()


def test_memory_is_accounted() -> None:
    gc.collect()  # tensors that earlier tests left in reference cycles would go in between
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    x = torch.ones(1 << 18, device="npu")
    y = x + 1
    z = x.sum()
    held = torch.npu.memory_allocated() - before
    assert 2 << 20 <= held <= (2 << 20) + 4096, "two large tensors and one number"
    del x, y, z
    assert torch.npu.memory_allocated() == before
    torch.npu.reset_peak_memory_stats()
    torch.nn.functional.gelu(torch.ones(1 << 18, device="npu"))
    assert torch.npu.max_memory_allocated() - before <= (2 << 20) + 4096, "results are not allocated twice"


def test_data_loader_pins_and_moves() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10.0))
    loader = torch.utils.data.DataLoader(data, batch_size=5, pin_memory=True)
    assert sum(batch.npu(non_blocking=True).sum().item() for (batch,) in loader) == 45
