"""The start-up hook: when it acts, what it costs, and that it never stops Python."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import _aloft_preload


@pytest.mark.parametrize(
    ("value", "nodes", "wanted"),
    [
        ("", [], True),
        ("auto", ["null", "tty"], True),
        ("auto", ["davinci_manager"], False),
        ("AUTO ", ["davinci0"], False),
        ("virtual", ["davinci0", "davinci_manager"], True),
        ("cann", [], False),
        ("nonsense", ["davinci0"], False),  # refused when torch loads aloft, not here
        ("nonsense", [], True),
    ],
)
def test_when_it_acts(monkeypatch: pytest.MonkeyPatch, value: str, nodes: list[str], wanted: bool) -> None:
    monkeypatch.setenv("ALOFT_RUNTIME", value)
    monkeypatch.setattr(os, "listdir", lambda path: nodes)
    assert _aloft_preload._virtual_wanted() is wanted


def test_dev_that_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setenv("ALOFT_RUNTIME", "auto")
    monkeypatch.setattr(os, "listdir", refuse)
    assert _aloft_preload._virtual_wanted() is True


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", program]
    # coverage's own start-up hook would load modules and cost time
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, check=False)


def test_sets_the_home_of_the_virtual_npu() -> None:
    program = "import os; print(os.environ['ASCEND_HOME_PATH'], os.environ.get('TASK_QUEUE_ENABLE'))"
    result = _python(program, ALOFT_RUNTIME="virtual", ASCEND_HOME_PATH="/vendor", TASK_QUEUE_ENABLE="1")
    home, queue = result.stdout.split()
    assert home.endswith("aloft/lib/home") and os.path.isdir(home)
    assert queue == "0" and "TASK_QUEUE_ENABLE is ignored" in result.stderr


def test_helps_only_a_cuda_build_of_torch(tmp_path: Path) -> None:
    """The library for PyPI's CUDA build of torch is mapped when such a build is imported, and for no other."""
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); maps = lambda: open('/proc/self/maps').read(); "
    program += "before = maps(); import torch; print(*['libaloft_cuda_torch.so' in m for m in (before, maps())])"
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    assert _python(program, ALOFT_RUNTIME="virtual").stdout == "False False\n"
    (tmp_path / "torch" / "lib" / "libc10_cuda.so").touch()
    assert _python(program, ALOFT_RUNTIME="virtual").stdout == "False True\n"


def test_missing_libraries_are_no_reason_to_stop() -> None:
    result = _python("print('alive')", ALOFT_LIB_DIR="/nonexistent", ALOFT_RUNTIME="virtual")
    assert result.stdout == "alive\n" and result.stderr == ""


def test_unknown_runtime_is_refused_when_torch_is_imported() -> None:
    result = _python("import torch", ALOFT_RUNTIME="npu")
    assert result.returncode != 0
    assert result.stderr == "aloft: ALOFT_RUNTIME='npu' is not one of auto, cann, virtual\n"


def test_cann_that_is_not_found_is_one_sentence(tmp_path: Path) -> None:
    """And any other failure of torch_npu stays as it is."""
    torch_npu = tmp_path / "torch_npu.py"
    program = f"import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {str(tmp_path)!r}); "
    program += "from aloft.runtime import autoload; autoload.choice.device_nodes = lambda: {!r}; autoload.load()"
    missing = "cannot open shared object file: No such file or directory"
    for nodes, way_out in (([], "no NPU is visible here"), (["/dev/davinci0"], "source CANN's set_env.sh")):
        torch_npu.write_text(f"raise ImportError('libhccl.so: {missing}')")
        result = _python(program.format(nodes), ALOFT_RUNTIME="cann")
        assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith(f"aloft: the runtime is cann, but CANN's libhccl.so was not found; {way_out}")
    for reason in (f"libgomp.so: {missing}", "libhccl.so: undefined symbol: HcclSend", "cannot import name 'x'"):
        torch_npu.write_text(f"raise ImportError({reason!r})")
        result = _python(program.format([]), ALOFT_RUNTIME="cann")
        assert "Traceback" in result.stderr and result.stderr.endswith(f"ImportError: {reason}\n")


def test_loads_nothing_but_the_standard_library() -> None:
    program = "import sys; print([m for m in ('torch', 'numpy', 'ctypes', 'aloft', 'typing') if m in sys.modules])"
    assert _python(program).stdout == "[]\n"


def test_costs_little() -> None:
    """Processor time of starting Python with the libraries mapped, over the same without: 1.5 ms measured, of 15;
    libstdc++, which torch maps anyway, is most of it. The least of many runs in turns, as a share of what Python
    itself takes: the machine may be busy, or slow."""
    times: dict[str, list[float]] = {"virtual": [], "cann": []}
    for _ in range(20):
        for choice, taken in times.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            _python("pass", ALOFT_RUNTIME=choice)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times["virtual"]) / min(times["cann"]) < 1.5, times


@pytest.mark.parametrize(("module", "walks"), [("vllm", False), ("other", True)])
def test_a_program_with_vllm_leaves_without_an_extra_walk_over_its_objects(module: str, walks: bool) -> None:
    result = _python(
        "import atexit, gc, sys, types\n"
        "import _aloft_preload\n"
        f"sys.modules[{module!r}] = types.ModuleType({module!r})\n"
        "atexit._run_exitfuncs()\n"
        "print(gc.isenabled())\n"
    )
    assert result.stdout.split() == [str(walks)], result.stderr


def test_no_garbage_is_collected_while_vllm_is_imported() -> None:
    """Nor is triton imported with it; afterwards the collector runs, or not, as before."""
    program = """
import gc, sys
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info))
{before}
import vllm
print(gc.isenabled(), len(collections), gc.get_freeze_count() > 50_000, sys.modules["triton"])
"""
    on = _python(program.format(before=""), ALOFT_RUNTIME="virtual").stdout.split()
    assert int(on.pop(1)) < 50  # hundreds otherwise
    assert on == ["True", "True", "None"]
    off = _python(program.format(before="gc.disable()"), ALOFT_RUNTIME="virtual", VLLM_PLUGINS="other").stdout
    assert off.startswith("False 0 False <module 'triton'")
