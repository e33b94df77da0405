"""``aloft::*_storage``: the device memory behind tensors goes and comes back, where the runtime can do that.

Tensors, their views and what torch_npu knows of their format stay valid; but nothing may read them in between. A call
concerns the whole storage of the tensor it gets, hence every tensor that shares it.
"""

from __future__ import annotations

import torch


def native() -> bool:
    """Whether the runtime has this: the virtual NPU."""
    return hasattr(torch.ops.aloft, "release_storage")


def key(tensor: torch.Tensor) -> int:
    """What tensors with one storage have in common, as long as one of them lives."""
    return tensor.untyped_storage()._cdata


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the storage, whether their memory is there or not."""
    return tensor.untyped_storage().nbytes()


def save(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the storage, as they lie there, in host memory: uint8 ``[bytes]``.

    Ordinary memory, not pinned: torch keeps pinned memory for ever, and on the virtual NPU it is copied no faster.
    """
    return torch.ops.aloft.save_storage.default(tensor)


def load(tensor: torch.Tensor, saved: torch.Tensor) -> None:
    """Puts bytes that ``save`` gave into the storage.

    Raises:
        ValueError: they are more than its bytes, or its memory is not there.
    """
    torch.ops.aloft.load_storage.default(tensor, saved)


def release(tensor: torch.Tensor) -> None:
    """Gives the memory back to torch's allocator; ``torch.npu.empty_cache`` gives it back to the device.

    Raises:
        ValueError: it is not there.
    """
    torch.ops.aloft.release_storage.default(tensor)


def restore(tensor: torch.Tensor, clear: bool = False) -> None:
    """Gets memory again, at another address.

    Args:
        clear: it is zeros; else whatever was in it.

    Raises:
        ValueError: it is there. torch.OutOfMemoryError: there is not enough.
    """
    torch.ops.aloft.restore_storage.default(tensor, clear)
