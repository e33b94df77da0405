"""Memory seen and shared by two processes: what one of them runs. Usage: peers.py hold|share|import ..."""

from __future__ import annotations

import ctypes
import os
import sys

ROLE = sys.argv[1]
acl = ctypes.CDLL(None)


def ok(code: int) -> None:
    if code:
        acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
        sys.exit(f"{code}: {acl.aclGetRecentErrMsg().decode()}")


def free_bytes() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ok(acl.aclrtGetMemInfo(1, ctypes.byref(free), ctypes.byref(total)))
    return free.value


def malloc(size: int) -> ctypes.c_void_p:
    address = ctypes.c_void_p()
    ok(acl.aclrtMalloc(ctypes.byref(address), ctypes.c_size_t(size), 0))
    return address


ok(acl.aclInit(None))
ok(acl.aclrtSetDevice(int(os.environ.get("PEER_DEVICE", "0"))))
if ROLE == "hold":  # takes 64 MiB, touches it, says so, waits to be killed
    block = malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    print(free_bytes(), flush=True)
    sys.stdin.read()
elif ROLE == "free":
    print(free_bytes(), flush=True)
elif ROLE == "share":  # exports a block by key and by handle; the importer's process number comes in
    block = malloc(1 << 20)
    ctypes.memset(block, 7, 1 << 20)
    key = ctypes.create_string_buffer(65)
    inside = ctypes.c_void_p(block.value + 512)
    ok(acl.aclrtIpcMemGetExportKey(inside, ctypes.c_size_t(4096), key, ctypes.c_size_t(65), 0))
    print(key.value.decode(), flush=True)
    pid = ctypes.c_int32(int(sys.stdin.readline()))
    ok(acl.aclrtIpcMemSetImportPid(key, ctypes.byref(pid), ctypes.c_size_t(1)))
    print("allowed", flush=True)
    sys.stdin.readline()
    print(ctypes.cast(block, ctypes.POINTER(ctypes.c_ubyte))[512], flush=True)
elif ROLE == "import":
    key = sys.argv[2].encode()
    address = ctypes.c_void_p()
    refused = acl.aclrtIpcMemImportByKey(ctypes.byref(address), key, 0)
    print(refused, os.getpid(), flush=True)
    sys.stdin.readline()
    ok(acl.aclrtIpcMemImportByKey(ctypes.byref(address), key, 0))
    bytes_ = ctypes.cast(address, ctypes.POINTER(ctypes.c_ubyte))
    print(bytes_[0], bytes_[4095], flush=True)
    bytes_[0] = 99
    ok(acl.aclrtIpcMemClose(key))
    print("closed", flush=True)
