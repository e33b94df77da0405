"""Puts the generic host route in place as soon as torch_npu is there.

Called by torch itself (entry point group ``torch.backends``) at the end of ``import torch``, and by the
start-up hook after ``import torch_npu`` where torch's own autoload is off. Runs in every process that
imports torch: standard library only, and nothing at all where CANN is the runtime.
"""

from __future__ import annotations

import ctypes
import importlib.util

from aloft.runtime import choice
from aloft.runtime.choice import library_folder, runtime_choice

_operators: int | None = None


def virtual() -> bool:
    """True when the ACL library mapped into this process is the virtual NPU's."""
    return hasattr(ctypes.CDLL(None), "aloftLaunchBegin")


def load() -> None:
    """Imports torch_npu and installs the route over its operators. Idempotent.

    Raises ImportError when torch_npu is installed but cannot be imported and RuntimeError when the route
    cannot be installed. Ends the process with one line when ALOFT_RUNTIME is none of its values, or CANN is to serve
    and its libraries are not found: torch would wrap any other exception in its own, two traces long.
    """
    try:
        runtime = runtime_choice()
    except ValueError as error:
        raise SystemExit(f"aloft: {error}") from None
    if importlib.util.find_spec("torch_npu") is None:
        return  # nothing to serve; `aloft doctor` says so
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        # The dynamic loader's own words; any other failure stays as it is.
        missing, _, words = str(error).partition(": ")
        ours = {f"lib{name}.so" for name in choice.LIBRARIES}
        if runtime == "cann" and words.startswith("cannot open shared object file") and missing in ours:
            way_out = choice.NO_CANN if choice.device_nodes() else choice.NO_DEVICE
            raise SystemExit(f"aloft: the runtime is cann, but CANN's {missing} was not found; {way_out}") from None
        raise

    install()


def install() -> None:
    """Installs the route; torch_npu has been imported. Does nothing on CANN, or a second time."""
    global _operators
    if _operators is not None or not virtual():
        return
    library = ctypes.CDLL(str(library_folder() / "libaloft_torch.so"), mode=ctypes.RTLD_GLOBAL)
    reason = ctypes.c_char_p()
    count = library.aloftTorchInstall(ctypes.byref(reason))
    if count < 0:
        text = (reason.value or b"").decode(errors="replace")
        raise RuntimeError(f"aloft: the operators of the virtual NPU could not be installed: {text}")
    _operators = count


def operators() -> int:
    """Number of aten operators that take the generic route in this process; 0 where it is not installed."""
    return _operators or 0
