"""Device memory through torch's allocator: capacity, out of memory, pinned memory. Run with 1 GiB a device."""

from __future__ import annotations

import torch
from report import check, main

DEVICE = "npu"
MIB = 1 << 20


def device_bytes(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=DEVICE)


@check
def too_much_raises_and_the_device_stays_usable() -> None:
    try:
        device_bytes(3000)
    except torch.OutOfMemoryError as error:
        assert "1024.00 MiB total" in str(error) or "1.00 GiB total" in str(error), error
    else:
        raise AssertionError("no error")
    held = device_bytes(600)
    try:
        device_bytes(600)
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("no error")
    del held
    again = device_bytes(900)
    again[-1] = 7
    assert again[-1].item() == 7


@check
def figures_agree() -> None:
    torch.npu.empty_cache()
    free, total = torch.npu.mem_get_info()
    assert total == 1024 * MIB
    assert torch.npu.get_device_properties(0).total_memory == total
    before = torch.npu.memory_allocated()
    x = device_bytes(100)
    free_now, _ = torch.npu.mem_get_info()
    assert free - free_now >= 100 * MIB
    assert 0 <= torch.npu.memory_allocated() - before - x.numel() <= 4096  # the allocator pads
    del x
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info()[0] == free


@check
def untouched_memory_is_not_committed() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    x = device_bytes(900)
    assert resident() - before < 50 * MIB
    x[: 10 * MIB].fill_(1)
    assert 8 * MIB < resident() - before < 60 * MIB
    del x
    torch.npu.empty_cache()
    assert resident() - before < 8 * MIB


@check
def fresh_memory_is_zero_again_after_reuse() -> None:
    x = device_bytes(64)
    x.fill_(5)
    del x
    torch.npu.empty_cache()
    y = torch.zeros(64 * MIB, dtype=torch.uint8, device=DEVICE)
    assert int(y.max().item()) == 0


@check
def pinned_memory() -> None:
    host = torch.arange(1000.0).pin_memory()
    assert host.is_pinned() and not torch.arange(3).is_pinned()
    assert host.tolist() == list(range(1000))
    device = host.to(DEVICE, non_blocking=True)
    back = torch.empty(1000).pin_memory()
    back.copy_(device, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, host)


@check
def copies_of_every_layout() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool, torch.complex64):
        host = (torch.arange(24) % 5).reshape(2, 3, 4).to(dtype)
        device = host.to(DEVICE)
        assert torch.equal(device.cpu(), host)
        assert torch.equal(device.transpose(0, 2).cpu(), host.transpose(0, 2))
        assert torch.equal(device[:, 1:, ::2].cpu(), host[:, 1:, ::2])
        target = torch.zeros(2, 3, 4, dtype=dtype, device=DEVICE)
        target[:, :2].copy_(device[:, 1:])
        assert torch.equal(target.cpu()[:, :2], host[:, 1:])
    empty = torch.empty(0, 3).to(DEVICE)
    assert empty.cpu().shape == (0, 3)


@check
def a_pool_of_its_own() -> None:
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        x = torch.ones(10 * MIB, dtype=torch.uint8, device=DEVICE)
    assert int(x.sum().item()) == 10 * MIB
    del x


main()
