"""libopapi called through its C interface, without torch_npu's adapters in between."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_uint64, c_void_p
from typing import Any

import torch
import torch_npu  # noqa: F401

from aloft.runtime.choice import library_folder

NULL, INVALID = 161001, 161002
Shape = tuple[int, ...]
DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.int8: 2,
    torch.int32: 3,
    torch.uint8: 4,
    torch.int16: 6,
    torch.int64: 9,
    torch.float64: 11,
    torch.bool: 12,
    torch.complex64: 16,
    torch.complex128: 17,
    torch.bfloat16: 27,
}


class Door:
    """libopapi with the pieces of its interface that the tests use."""

    def __init__(self) -> None:
        torch.zeros(1).npu()  # the device is up
        folder = str(library_folder())
        self.opapi = ctypes.CDLL(f"{folder}/libopapi.so")
        self.runtime = ctypes.CDLL(f"{folder}/libascendcl.so")
        self.runtime.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.opapi.aclCreateTensor.restype = c_void_p
        self.opapi.aclCreateScalar.restype = c_void_p

    def tensor(self, x: torch.Tensor, shape: Shape | None = None, layout: int = 2) -> c_void_p:
        """An aclTensor over the memory of `x`, with its geometry or with another shape (strides 1)."""
        sizes = tuple(x.shape) if shape is None else shape
        strides = tuple(x.stride()) if shape is None else (1,) * len(sizes)
        dims, steps = (c_int64 * len(sizes))(*sizes), (c_int64 * len(sizes))(*strides)
        n, offset = c_uint64(len(sizes)), c_int64(x.storage_offset())
        data = c_void_p(x.untyped_storage().data_ptr())
        return c_void_p(self.opapi.aclCreateTensor(dims, n, DTYPES[x.dtype], steps, offset, layout, dims, n, data))

    def plan(self, name: str, *arguments: Any) -> tuple[int, c_void_p]:
        """Calls ...GetWorkspaceSize; tensors are wrapped."""
        size, executor = c_uint64(7), c_void_p()
        passed = [self.tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        code = getattr(self.opapi, f"{name}GetWorkspaceSize")(*passed, byref(size), byref(executor))
        assert size.value == 0
        return code, executor

    def run(self, name: str, executor: c_void_p) -> int:
        """Runs a planned operator on the current stream."""
        stream = c_void_p(torch.npu.current_stream().npu_stream)
        return getattr(self.opapi, name)(None, c_uint64(0), executor, stream)

    def call(self, name: str, *arguments: Any) -> None:
        """Plans and runs; RuntimeError with the last-error text when refused."""
        code, executor = self.plan(name, *arguments)
        if code or self.run(name, executor):
            raise RuntimeError(self.message())

    def message(self) -> str:
        """The last-error text, once."""
        return self.runtime.aclGetRecentErrMsg().decode()
