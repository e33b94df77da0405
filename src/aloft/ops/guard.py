"""Finds writes outside an operator's operands: inputs lie inside poisoned buffers, outputs in poisoned memory."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

GUARD_BYTES = 512
_POISON = 0xA5
_DEVICE_TO_HOST = 2  # aclrtMemcpyKind
_BLOCK = 512  # the caching allocator's granularity


class GuardedOperand:
    """A copy of a CPU tensor on `device` with the same strides, inside a larger buffer.

    All elements of the buffer that are not elements of the tensor (before, behind, and between its strides) hold a
    poison pattern: NaN for floating dtypes, a large number for integers, so that reading them shows as well.
    """

    def __init__(self, tensor: torch.Tensor, device: torch.device) -> None:
        guard = GUARD_BYTES // tensor.element_size()
        steps = list(zip(map(int, tensor.shape), map(int, tensor.stride()), strict=True))
        span = 1 + sum((n - 1) * s for n, s in steps) if tensor.numel() else 0
        offset = guard + int(tensor.storage_offset()) % guard
        buffer = poisoned(offset + span + guard, tensor.dtype)
        index = torch.zeros(1, dtype=torch.int64)
        for n, s in steps:
            index = (index[:, None] + torch.arange(n) * s).reshape(-1)
        index = index + offset
        buffer[index] = tensor.reshape(-1)
        self._is_data = torch.zeros(buffer.numel(), dtype=torch.bool)
        self._is_data[index] = True
        self._before = buffer
        self._on_device = buffer.to(device)
        self.view = self._on_device.as_strided(tensor.shape, tensor.stride(), offset)

    def value(self) -> torch.Tensor:
        """The tensor as it is on the device now, on the CPU (same strides)."""
        return self._on_device.cpu().as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())

    def violations(self, mutated: bool) -> list[str]:
        """What changed though it must not: text for each kind. `mutated`: its own elements may change."""
        size = self._before.element_size()
        before = self._before.view(torch.uint8).view(-1, size)
        after = self._on_device.cpu().view(torch.uint8).view(-1, size)
        changed = (before != after).any(1)
        found = []
        outside = int((changed & ~self._is_data).sum())
        if outside:
            first = int((changed & ~self._is_data).nonzero()[0]) - int(self.view.storage_offset())
            found.append(f"{outside} elements outside it were written (first at {first:+d} from its start)")
        if not mutated and bool((changed & self._is_data).any()):
            found.append(f"{int((changed & self._is_data).sum())} of its elements were changed, which is not declared")
        return found


def poisoned(n: int, dtype: torch.dtype) -> torch.Tensor:
    """A CPU buffer of n elements of poison."""
    if dtype == torch.bool:
        return torch.ones(n, dtype=dtype)
    if dtype.is_floating_point:
        return torch.full((n,), float("nan"), dtype=dtype)
    if dtype.is_complex:
        return torch.full((n,), complex("nan"), dtype=dtype)
    return torch.full((n,), torch.iinfo(dtype).max // 2 + 21, dtype=dtype)


class OutputArena:
    """Poisons the free memory from which torch's caching allocator will carve the next outputs.

    The allocator rounds every block up and leaves slack behind each tensor; nobody may write there. `violations` looks
    at that slack, and at the slack of whatever lies before the tensor, through ACL's own copy function. An operator
    whose output reuses the block of a larger temporary of its own would be blamed wrongly.
    """

    def __init__(self, device: torch.device, large: int = 0) -> None:
        """`large`: bytes of outputs above 1 MiB to prepare for."""
        self._slack = _slack_bytes(device)
        half = (1 << 20) - _BLOCK
        sizes = [half, half] + ([large + (1 << 20)] if large else [])
        # Made on the host and copied: the arena must not need an operator of the runtime it judges.
        blocks = [torch.full((n,), _POISON, dtype=torch.uint8).to(device) for n in sizes]
        torch.npu.synchronize()  # type: ignore[attr-defined]
        self._ranges = [(block.data_ptr(), block.data_ptr() + block.numel()) for block in blocks]
        del blocks
        # Keeps the first output off the start of the segment, so that something known lies before it.
        self._anchor = torch.full((_BLOCK - self._slack,), _POISON, dtype=torch.uint8).to(device)

    def covers(self, tensor: torch.Tensor) -> bool:
        """True when `tensor` lies in memory this arena has poisoned, so that its surroundings are known."""
        start = tensor.untyped_storage().data_ptr()
        end = start + tensor.untyped_storage().nbytes()
        return any(low <= start and end + self._slack <= high for low, high in self._ranges)

    def violations(self, tensor: torch.Tensor) -> list[str]:
        """Text for writes before and behind the storage of `tensor`; nothing if it is not covered."""
        if tensor.untyped_storage().nbytes() == 0 or not self.covers(tensor):
            return []
        start = tensor.untyped_storage().data_ptr()
        end = start + tensor.untyped_storage().nbytes()
        granted = start + -(-(end - start + self._slack) // _BLOCK) * _BLOCK
        low, high = next((low, high) for low, high in self._ranges if low <= start < high)
        found = []
        behind = _written(end, min(granted, high))
        before = _written(max(start - self._slack, low), start)
        if behind:
            found.append(f"{behind} bytes behind it were written")
        if before:
            found.append(f"{before} bytes before it were written")
        return found


def _written(start: int, end: int) -> int:
    """Number of bytes of device memory [start, end) that are no longer poison."""
    if end <= start:
        return 0
    host = (ctypes.c_ubyte * (end - start))()
    code = _acl().aclrtMemcpy(host, end - start, ctypes.c_void_p(start), end - start, _DEVICE_TO_HOST)
    if code:
        raise RuntimeError(f"aclrtMemcpy of {end - start} bytes from the device failed with code {code}")
    return sum(byte != _POISON for byte in host)


def _acl() -> Any:
    library = ctypes.CDLL("libascendcl.so")  # mapped by torch_npu already: found by its name on every runtime
    library.aclrtMemcpy.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
    ]
    library.aclrtMemcpy.restype = ctypes.c_int
    return library


_slack: int | None = None


def _slack_bytes(device: torch.device) -> int:
    """Bytes the caching allocator adds behind each request (torch_npu: 32), measured."""
    global _slack
    if _slack is None:
        before = torch.npu.memory_allocated(device)  # type: ignore[attr-defined]
        probe = torch.empty(_BLOCK, dtype=torch.uint8, device=device)
        grown = torch.npu.memory_allocated(device) - before  # type: ignore[attr-defined]
        _slack = 32 if grown > _BLOCK else 0
        del probe
    return _slack
