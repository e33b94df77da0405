"""Start-up hook (run from aloft_preload.pth in every Python process of the environment).

torch loads its device backends while it is imported, and torch_npu needs the ACL libraries at that
moment. Where no CANN serves this process, this maps the virtual NPU's libraries first, by absolute
path: the loader then takes them for their names, whatever LD_LIBRARY_PATH holds. Standard library
only, about a millisecond, and never a reason for Python not to start.
"""

import _thread
import atexit
import gc
import os
import sys

# What torch_npu links against or opens by name; a library that others link against comes first.
_LIBRARIES = (
    "ascendcl",
    "acl_op_compiler",
    "hccl",
    "graph",
    "ge_runner",
    "acl_tdt_channel",
    "opapi",
    "nnopbase",
    "atb",
)


def _virtual_wanted() -> bool:
    choice = os.environ.get("ALOFT_RUNTIME", "auto").strip().lower()
    if choice in ("cann", "virtual"):
        return choice == "virtual"
    # auto: the device nodes decide. An unknown value is refused later, by aloft.runtime.choice.
    try:
        return not any(name.startswith("davinci") for name in os.listdir("/dev"))
    except OSError:
        return True


def preload() -> None:
    folder = os.environ.get("ALOFT_LIB_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "aloft", "lib")
    if not os.path.exists(os.path.join(folder, "libascendcl.so")) or not _virtual_wanted():
        return
    for name in _LIBRARIES:
        _map(folder, name)
    # A CANN image forced virtual has its own value here; torch_npu must not read the vendor's files.
    os.environ["ASCEND_HOME_PATH"] = os.path.join(folder, "home")
    os.environ["ASCEND_OPP_PATH"] = os.path.join(folder, "home", "opp")
    # torch_npu's host-side task queue would let a host read overtake queued work, hide an operator that failed in
    # it, and cost latency: our streams are asynchronous by themselves where that is wanted (ALOFT_STREAMS).
    if os.environ.get("TASK_QUEUE_ENABLE", "0") != "0":
        sys.stderr.write("aloft: TASK_QUEUE_ENABLE is ignored, the virtual NPU takes operators directly\n")
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    _AroundImports.folder = folder
    sys.meta_path.insert(0, _AroundImports)
    atexit.register(_leave)  # before anything else registers: runs last


def _map(folder: str, name: str) -> None:
    """Loads one of our libraries; those loaded later find its symbols first."""
    try:
        from _ctypes import dlopen  # what ctypes.CDLL calls; importing ctypes itself would cost as much again
    except ImportError:
        from ctypes import CDLL as dlopen
    dlopen(os.path.join(folder, f"lib{name}.so"), os.RTLD_GLOBAL | os.RTLD_LAZY)


def _leave() -> None:
    """Spares a program with vLLM in it one of the collector's walks over its million objects: a second of its exit.

    The walk after the modules are gone stays: were the objects still frozen, nanobind would report leaks. A server
    that was asked to end and has done so leaves without any.
    """
    parent = sys.modules.get("aloft.runner.parent")
    status = parent.status_of_ended_server() if parent is not None else None
    if status is not None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status)
    if "vllm" in sys.modules:
        gc.disable()
        gc.unfreeze()


class _AroundImports:
    """Import hook for torch, torch_npu and vLLM.

    Whichever way torch_npu gets imported, its operators are ours right after. PyPI's torch for x86-64 is a CUDA build:
    a library of ours goes before it, so that torch_npu loads beside it. While a module of these packages is
    executed, no garbage is collected: what imports make stays, and looking through it over and over took a sixth of
    vLLM's start.
    """

    MANY = 50_000  # objects a single import must have made for them to be worth it
    lock = _thread.allocate_lock()
    pauses = 0
    collects = False
    folder = ""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        package = name.partition(".")[0]
        if package != "vllm" and name not in ("torch", "torch_npu"):
            return None
        for finder in sys.meta_path:
            spec = None if finder is cls else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        run = getattr(spec.loader, "exec_module", None)
        if run is None:
            return spec

        def exec_module(module):
            if name == "vllm":
                from aloft.runtime import triton

                triton.hide()
            if name == "torch" and _is_built_for_cuda(spec.origin):
                _map(cls.folder, "aloft_cuda_torch")
            cls.pause()
            try:
                run(module)
                if name == "torch_npu":
                    from aloft.runtime.autoload import install

                    install()
            finally:
                cls.resume(package == "vllm")

        spec.loader.exec_module = exec_module
        return spec

    @classmethod
    def pause(cls):
        with cls.lock:
            if not cls.pauses:
                cls.collects = gc.isenabled()
                gc.disable()
            cls.pauses += 1

    @classmethod
    def resume(cls, stays):
        with cls.lock:
            cls.pauses -= 1
            if cls.pauses or not cls.collects:
                return
            if stays and gc.get_count()[0] > cls.MANY:
                gc.freeze()  # vLLM does so too, when an engine stands; a forked engine shares what is frozen
            gc.enable()


def _is_built_for_cuda(torch: str | None) -> bool:
    return torch is not None and os.path.exists(os.path.join(os.path.dirname(torch), "lib", "libc10_cuda.so"))


try:
    preload()
except Exception as error:
    sys.stderr.write(f"aloft: the virtual NPU could not be loaded ({error}); `aloft doctor` says more\n")
