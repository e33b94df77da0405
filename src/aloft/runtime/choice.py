"""Which Ascend runtime serves this environment, as far as files and the environment tell (nothing is loaded).

The start-up hook (`_aloft_preload.py`) decides by the same rules, in every process, before torch is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

CHOICES = ("auto", "cann", "virtual")
DEFAULT_SOC = "910B3"
# Order matters: a library comes after those it links against.
LIBRARIES = (
    "aloft_kernels",
    "ascendcl",
    "acl_op_compiler",
    "hccl",
    "graph",
    "ge_runner",
    "acl_tdt_channel",
    "opapi",
    "nnopbase",
    "atb",
    "aloft_cuda_torch",
    "aloft_torch",
)

NO_DEVICE = "no NPU is visible here: start the container with its devices, or set ALOFT_RUNTIME=virtual"
NO_CANN = "source CANN's set_env.sh before starting, or set ALOFT_RUNTIME=virtual to use the host CPU"


def runtime_choice() -> str:
    """`"cann"` or `"virtual"`.

    `ALOFT_RUNTIME=auto` (the default) means CANN where NPU device nodes exist, else the virtual NPU.

    Raises:
        ValueError: ALOFT_RUNTIME is something else.
    """
    wanted = os.environ.get("ALOFT_RUNTIME", "auto").strip().lower() or "auto"
    if wanted not in CHOICES:
        raise ValueError(f"ALOFT_RUNTIME={wanted!r} is not one of {', '.join(CHOICES)}")
    if wanted != "auto":
        return wanted
    return "cann" if device_nodes() else "virtual"


def device_nodes() -> list[str]:
    """Device files of Ascend NPUs on this machine, such as `/dev/davinci0`."""
    return sorted(str(node) for node in Path("/dev").glob("davinci*"))


def library_folder() -> Path:
    """Where the virtual NPU's libraries lie: `ALOFT_LIB_DIR`, else `lib` beside the package or its start-up hook."""
    if override := os.environ.get("ALOFT_LIB_DIR"):
        return Path(override)
    beside_package = Path(__file__).resolve().parent.parent / "lib"
    if beside_package.is_dir():
        return beside_package
    import importlib.util  # an editable install: sources here, libraries beside the hook

    spec = importlib.util.find_spec("_aloft_preload")
    return Path(spec.origin).resolve().parent / "aloft" / "lib" if spec and spec.origin else beside_package


def missing_libraries() -> str:
    """What is missing of the virtual NPU, in words; empty where nothing is."""
    folder = library_folder()
    names = [f"lib{name}.so" for name in LIBRARIES if not (folder / f"lib{name}.so").exists()]
    if len(names) == len(LIBRARIES):
        return f"none of its libraries in {folder}"
    return f"no {', '.join(names)} in {folder}" if names else ""


def device_line(index: int = 0) -> str:
    """One line naming the device that serves, for people: `npu:0, virtual (910B3 profile, host CPU; not hardware)`."""
    if runtime_choice() == "cann":
        return f"npu:{index}, CANN"
    return f"npu:{index}, virtual ({os.environ.get('ALOFT_SOC') or DEFAULT_SOC} profile, host CPU; not hardware)"
