"""Start-up hook (run from aloft_preload.pth in every Python process of the environment).

torch loads its device backends while it is imported, and torch_npu needs the ACL libraries at that
moment. Where no CANN serves this process, this maps the virtual NPU's libraries first, so that the
loader finds them by their names. Kept to the standard library and about a millisecond.
"""

import os


def _virtual_wanted() -> bool:
    choice = os.environ.get("ALOFT_RUNTIME", "auto").strip().lower()
    if choice == "virtual":
        return True
    if choice == "cann":
        return False
    # auto (and unknown values, which `aloft` itself refuses later): the device nodes decide
    return not any(os.path.exists(f"/dev/davinci{i}") for i in (*range(8), "_manager"))


def preload() -> None:
    folder = os.environ.get("ALOFT_LIB_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "aloft", "lib")
    if not os.path.exists(os.path.join(folder, "libascendcl.so")) or not _virtual_wanted():
        return
    from ctypes import CDLL, RTLD_GLOBAL

    for name in ("ascendcl", "acl_op_compiler", "hccl", "graph", "ge_runner", "acl_tdt_channel", "opapi"):
        CDLL(os.path.join(folder, f"lib{name}.so"), RTLD_GLOBAL)
    os.environ.setdefault("ASCEND_HOME_PATH", folder)
    # torch_npu's host-side task queue would let a host read overtake queued work, and costs latency:
    # our streams are asynchronous by themselves where that is wanted.
    os.environ.setdefault("TASK_QUEUE_ENABLE", "0")


try:
    preload()
except Exception as error:  # a start-up hook must never stop Python itself
    import sys

    sys.stderr.write(f"aloft: the virtual NPU could not be loaded: {error}\n")
