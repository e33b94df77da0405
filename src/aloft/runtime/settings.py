"""Wrong values of the virtual NPU's environment variables, found before anything slow starts.

The libraries read the variables and know the valid values; each is asked here, in the process that will fail.
"""

from __future__ import annotations

import ctypes
import os

from aloft.runtime.autoload import virtual
from aloft.runtime.choice import library_folder

_INVALID_PARAMETER = 100000


def complaint() -> str:
    """The first wrong `ALOFT_*` value in the words of the library that reads it; empty where all are right, or on CANN.

    Uses no device, so that the process may still fork.
    """
    if not virtual():
        return ""
    acl = ctypes.CDLL(None)
    acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
    if acl.aclrtGetDeviceCount(ctypes.byref(ctypes.c_uint32())) == _INVALID_PARAMETER:
        return _text(acl.aclGetRecentErrMsg())
    kernels = ctypes.CDLL(str(library_folder() / "libaloft_kernels.so"))
    kernels.aloftKernelsError.restype = ctypes.c_char_p
    if wrong := kernels.aloftKernelsError():
        return _text(wrong)
    contract = os.environ.get("ALOFT_CONTRACT")
    if contract and acl.aloftSetContract(contract.encode()) < 0:
        return _text(acl.aclGetRecentErrMsg())
    return ""


def _text(message: bytes | None) -> str:
    return (message or b"").decode(errors="replace").removeprefix("aloft: ")
