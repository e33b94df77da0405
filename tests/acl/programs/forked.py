"""What a forked child may do: everything before the runtime was used, nothing but a clear error after."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch


def in_child(body: Callable[[], object]) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(body())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode()[:4000])
        os._exit(0)
    os.close(write)
    text = os.read(read, 5000).decode()
    _, status = os.waitpid(pid, 0)
    return f"{status}|{text}"


before = in_child(lambda: (torch.ones(2, device="npu") + 1).cpu().tolist())
x = torch.ones(2, device="npu")
after = in_child(lambda: torch.ones(2, device="npu").cpu().tolist())
copy = in_child(lambda: x.cpu().tolist())
assert before == "0|[2.0, 2.0]", before
for text in (after, copy):
    assert text.startswith("0|") and ("fork" in text), text
assert (x + 1).cpu().tolist() == [2.0, 2.0]  # the parent goes on
print("fine")
sys.stdout.flush()
