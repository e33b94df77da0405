"""What `aloft doctor` looks at. Nothing heavy is imported here: torch is tried in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import aloft
from aloft.runtime import choice

# What this version is written for and tested with.
SUPPORTED = {"torch": "2.13.0", "torch_npu": "2.13.0", "vllm": "0.32.0"}
MIN_PYTHON = (3, 11)
MIN_MEMORY_GIB = 2.0
# The demo model with its engine takes about this much.
GOOD_MEMORY_GIB = 4.0
GIB = 1 << 30
_REINSTALL = (
    "reinstall aloft into this environment: pip install --no-build-isolation --no-deps --force-reinstall <aloft>"
)


@dataclass(frozen=True)
class Check:
    """Result of one check. status: `ok`, `warn` (works, but not as well) or `fail`; fix: empty where none is needed."""

    name: str
    status: str
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """The four fields, for JSON."""
        return asdict(self)


def run_check(check: Callable[[], Check]) -> Check:
    """The check's result; one that breaks is a failed check, never a traceback."""
    try:
        return check()
    except Exception as error:
        name = check.__name__.removeprefix("check_")
        return Check(name, "fail", f"could not be checked: {type(error).__name__}: {error}", "please report this")


def check_python() -> Check:
    """Version and system."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if sys.version_info < MIN_PYTHON:
        return Check("python", "fail", found, "use Python 3.11 or newer")
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return Check("python", "fail", found, "aloft runs on Linux, x86-64 or aarch64")
    return Check("python", "ok", found)


def check_cpu() -> Check:
    """Instruction sets the kernels choose from."""
    if platform.machine() != "x86_64":
        return Check("cpu", "ok", f"{platform.machine()}: portable kernels")
    flags = set(_cpu_flags())
    if missing := {"avx2", "fma", "f16c"} - flags:
        fix = "expect portable kernels, several times slower; use a processor with AVX2"
        return Check("cpu", "warn", f"no {', '.join(sorted(missing))}", fix)
    found = "AVX2" + (", AVX-512" if "avx512bw" in flags else "")
    for flag, name in (("avx512_vnni", "VNNI"), ("amx_tile", "AMX")):
        found += f", {name}" if flag in flags else ""
    return Check("cpu", "ok", found)


def check_memory() -> Check:
    """Host memory that is free for the virtual devices (cgroup limits included)."""
    free = free_memory() / GIB
    found = f"{free:.1f} GiB free"
    if free < MIN_MEMORY_GIB:
        return Check("memory", "fail", found, f"free at least {MIN_MEMORY_GIB:.0f} GiB, or raise the container's limit")
    if free < GOOD_MEMORY_GIB:
        fix = "enough for small models; a smaller --max-model-len and --max-num-seqs need less"
        return Check("memory", "warn", found, fix)
    return Check("memory", "ok", found)


def check_versions() -> Check:
    """torch, torch_npu and vllm against what this version of aloft is written for."""
    have = {name: package_version(name) for name in SUPPORTED}
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in have.items())
    wrong = [name for name, version in have.items() if (version or "").split("+")[0] != SUPPORTED[name]]
    if not wrong:
        return Check("versions", "ok", found)
    if wrong == ["vllm"] and have["vllm"] is None:
        return Check(
            "versions", "warn", found, "torch programs work; to serve, install vLLM (see docs/running-on-ascend.md)"
        )
    fix = "install " + " ".join(f"{name}=={SUPPORTED[name]}" for name in wrong)
    if "torch_npu" in wrong or "torch" in wrong:
        fix += "; torch and torch_npu must have the same version"
    return Check("versions", "fail", found, fix)


def check_runtime() -> Check:
    """ALOFT_RUNTIME, NPU device nodes and CANN: which runtime serves, and whether it can."""
    nodes, cann = choice.device_nodes(), find_cann()
    seen = f"{len(nodes)} NPU device nodes, " + (f"CANN in {cann}" if cann else "no CANN found")
    try:
        wanted = choice.runtime_choice()
    except ValueError as error:
        return Check("runtime", "fail", str(error), "unset ALOFT_RUNTIME, or set it to one of the values named")
    found = f"{wanted} (ALOFT_RUNTIME={os.environ.get('ALOFT_RUNTIME') or 'auto'}; {seen})"
    if wanted == "cann":
        if not nodes:
            return Check("runtime", "fail", found, choice.NO_DEVICE)
        if blocked := [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]:
            return Check("runtime", "fail", found, f"no permission on {blocked[0]}: join the group that owns it")
        if not cann:
            return Check("runtime", "fail", found, choice.NO_CANN)
        return Check("runtime", "ok", found)
    if nodes:
        return Check("runtime", "warn", found, "an NPU is here but not used; unset ALOFT_RUNTIME to use it")
    if cann:
        fix = (
            "CANN cannot be used without device nodes, so the virtual NPU serves; start the container with its devices"
        )
        return Check("runtime", "warn", found, fix)
    return Check("runtime", "ok", found)


def check_libraries() -> Check:
    """The virtual NPU's libraries: there, of this version, for this torch."""
    folder = choice.library_folder()
    if missing := choice.missing_libraries():
        if os.environ.get("ALOFT_LIB_DIR"):
            return Check("libraries", "fail", missing, "ALOFT_LIB_DIR names the wrong folder; unset it")
        if _on_cann():
            return Check("libraries", "ok", f"{missing}; not needed with CANN")
        return Check("libraries", "fail", missing, f"installed with ALOFT_BUILD=none, or damaged: {_REINSTALL}")
    try:
        build = json.loads((folder / "build.json").read_text())
    except (OSError, ValueError) as error:
        return Check("libraries", "fail", f"{folder / 'build.json'} cannot be read ({error})", _REINSTALL)
    found = f"{folder}, version {build['version']} for torch {build['torch']}"
    if build["version"] != aloft.__version__:
        return Check("libraries", "fail", f"{found}, but the package is {aloft.__version__}", _REINSTALL)
    torch = package_version("torch")
    if torch and build["torch"].split("+")[0] != torch.split("+")[0]:
        return Check("libraries", "fail", f"{found}, but torch {torch} is installed", _REINSTALL)
    return Check("libraries", "ok", found)


def check_compiler() -> Check:
    """A C++ compiler: needed to build aloft, not to run it."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return Check("compiler", "ok", path)
    if choice.missing_libraries() and not _on_cann():
        return Check("compiler", "fail", "none", "install g++ (Debian: apt-get install g++ make), then build aloft")
    return Check("compiler", "ok", "none; not needed to run")


def check_hook() -> Check:
    """Whether the start-up hook runs in a new Python process of this environment."""
    if _on_cann():
        return Check("hook", "ok", "not needed with CANN")
    program = (
        "import sys; maps = open('/proc/self/maps').read()\n"
        "print('_aloft_preload' in sys.modules, 'libascendcl.so' in maps)"
    )
    output = _python(program, timeout_s=30)
    if output.stdout.split() == ["True", "True"]:
        return Check("hook", "ok", "libraries are mapped when Python starts")
    lines = output.stderr.strip().splitlines()
    found = lines[-1] if lines else "not active: aloft_preload.pth is not read in this environment"
    return Check("hook", "fail", found, _REINSTALL)


def check_torch() -> Check:
    """torch with a tensor on `npu`, in a process of its own."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        fix = "unset TORCH_DEVICE_BACKEND_AUTOLOAD; with it every program has to import torch_npu itself"
        return Check("torch", "warn", "TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch does not load torch_npu", fix)
    if package_version("torch") is None:
        return Check("torch", "fail", "torch is not installed", f"install torch=={SUPPORTED['torch']}")
    program = (
        "import torch; x = torch.ones(2, 3, device='npu'); y = (x @ x.t()).cpu().tolist()\n"
        "assert y == [[3.0, 3.0], [3.0, 3.0]], y; print(torch.npu.device_count(), torch.npu.get_device_name(0))"
    )
    output = _python(program, timeout_s=180)
    if output.returncode == 0:
        count, name = output.stdout.split(maxsplit=1)
        return Check("torch", "ok", f"{count} x {name.strip()}; a matrix product on npu:0 is right")
    lines = output.stderr.strip().splitlines()
    found = lines[-1] if lines else f"ended with status {output.returncode}"
    return Check("torch", "fail", found, "mend the failures above first; then run: python -c 'import torch_npu'")


def check_plugins() -> Check:
    """vLLM platform plugins: ours found, not excluded, and alone."""
    names = [entry.name for entry in metadata.entry_points(group="vllm.platform_plugins")]
    found = "platform plugins: " + (", ".join(names) or "none")
    if "aloft" not in names:
        return Check("plugins", "fail", found, _REINSTALL)
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None:
        found += f"; VLLM_PLUGINS={allowed}"
        names = [name for name in names if name in {part.strip() for part in allowed.split(",")}]
        if "aloft" not in names:
            return Check("plugins", "fail", found, "VLLM_PLUGINS leaves aloft out: unset it, or add aloft to it")
    if len(names) > 1:
        others = ", ".join(name for name in names if name != "aloft")
        fix = f"vLLM takes one platform: set VLLM_PLUGINS=aloft, or VLLM_PLUGINS={others} for the other"
        return Check("plugins", "warn", found, fix)
    target = os.environ.get("VLLM_TARGET_DEVICE")
    if target not in (None, "", "empty"):
        fix = "it is meant for building vLLM only: unset it"
        return Check("plugins", "warn", f"{found}; VLLM_TARGET_DEVICE={target} at run time", fix)
    return Check("plugins", "ok", found)


# In the order of printing: causes before effects.
CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_cpu,
    check_memory,
    check_compiler,
    check_versions,
    check_libraries,
    check_runtime,
    check_hook,
    check_torch,
    check_plugins,
)


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None where it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def find_cann() -> str | None:
    """Folder of a CANN installation's libascendcl.so that this process could load; None where there is none."""
    ours = choice.library_folder().resolve()
    folders = [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if home := os.environ.get(name):
            folders.append(Path(home) / "lib64")
    folders.append(Path("/usr/local/Ascend/ascend-toolkit/latest/lib64"))
    for folder in folders:
        if (folder / "libascendcl.so").exists() and folder.resolve() != ours:
            return str(folder)
    return None


def free_memory() -> int:
    """Bytes the system or the control group of this process could still give."""
    import psutil

    free = psutil.virtual_memory().available
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such control group, or no limit ("max")
            continue
    return max(free, 0)


def _cpu_flags() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line.split(":", 1)[1].split()
    return []


def _on_cann() -> bool:
    try:
        return choice.runtime_choice() == "cann"
    except ValueError:
        return False


def _python(program: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {timeout_s:.0f} s")
