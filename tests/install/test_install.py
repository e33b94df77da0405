"""aloft works from a wheel, an sdist and an editable install, and in every process of the environment."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from installing import REPOSITORY, Environment, Sources, git_files, run

PRODUCT = "import torch; print(torch.ones(2,2,device='npu')@torch.ones(2,2,device='npu'))"
TWOS = "tensor([[2., 2.],\n        [2., 2.]], device='npu:0')\n"
MAPPED = "maps = open('/proc/self/maps').read()"

FORKED = f"""
import multiprocessing, os, subprocess, sys
def child(queue):
    {MAPPED}
    queue.put('libascendcl' in maps)
if __name__ == '__main__':
    for method in ('spawn', 'fork', 'forkserver'):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(method, queue.get(timeout=60))
        process.join()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-I', '-c', "{MAPPED}; print('exec', 'libascendcl' in maps)"])
    os.wait()
"""


@pytest.fixture
def installed(request: pytest.FixtureRequest, environment: Environment, sources: Sources) -> Environment:
    """An environment with aloft installed in the form the test is parametrized with."""
    form = request.param
    if form == "wheel":
        environment.pip("wheel", "-w", environment.root, *sources.options(), sources.folder)
        (wheel,) = environment.root.glob("vllm_aloft-*.whl")
        assert "py3-none-linux" in wheel.name
        environment.pip("install", "--no-deps", wheel)
    elif form == "sdist":
        environment.pip("install", *sources.options(), sources.folder)
    else:
        environment.pip("install", *sources.options(), "-e", sources.folder)
    return environment


@pytest.mark.parametrize("installed", ["wheel", "sdist", "editable"], indirect=True)
def test_torch_program_needs_no_import_of_ours(installed: Environment, sources: Sources) -> None:
    before = _files(installed.site)
    result = installed.run("-c", PRODUCT)
    assert result.stdout == TWOS, result.stdout + result.stderr
    # Nothing is written beside the package but byte code: a read-only installation works.
    assert {name for name in _files(installed.site) - before if "__pycache__" not in name} == set()
    owner = installed.run("-I", "-c", f"{MAPPED}; print([l for l in maps.splitlines() if 'libascendcl' in l][0])")
    assert str(installed.site) in owner.stdout, owner.stdout + owner.stderr


@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
class TestWheel:
    """One installation, several questions (a method each would install again)."""

    def test_wheel(self, installed: Environment, tmp_path: Path) -> None:
        self.every_process(installed, tmp_path)
        self.cann_on_library_path(installed, tmp_path)
        self.cann_chosen(installed)
        self.doctor(installed)
        self.second_platform_plugin(installed)
        self.broken_library(installed, tmp_path)
        installed.pip("uninstall", "-y", "vllm-aloft")
        assert not [name for name in _files(installed.site) if "aloft" in name and "__pycache__" not in name]

    def every_process(self, installed: Environment, tmp_path: Path) -> None:
        program = tmp_path / "forked.py"
        program.write_text(FORKED)
        result = installed.run("-u", program)
        assert result.stdout.split("\n") == ["spawn True", "fork True", "forkserver True", "exec True", ""], (
            result.stderr
        )

    def cann_on_library_path(self, installed: Environment, tmp_path: Path) -> None:
        """A CANN image without devices: its libraries are on the path, and must not be taken."""
        fake = tmp_path / "cann"
        fake.mkdir()
        for name in ("ascendcl", "hccl", "opapi", "ge_runner"):
            made = run(
                ["cc", "-shared", "-xc", "/dev/null", "-o", fake / f"lib{name}.so", f"-Wl,-soname,lib{name}.so"],
                tmp_path,
            )
            assert made.returncode == 0, made.stderr
        path = {"LD_LIBRARY_PATH": str(fake), "ASCEND_HOME_PATH": str(fake)}
        result = installed.run("-c", PRODUCT, ALOFT_RUNTIME="virtual", **path)
        assert result.stdout == TWOS, result.stdout + result.stderr
        assert str(fake) not in installed.run("-c", f"{MAPPED}; print(maps)", **path).stdout

    def cann_chosen(self, installed: Environment) -> None:
        """Never virtual where CANN was asked for."""
        assert "libascendcl" not in installed.run("-c", f"{MAPPED}; print(maps)", ALOFT_RUNTIME="cann").stdout
        report = _doctor(installed, ALOFT_RUNTIME="cann")
        assert report["runtime"]["status"] == "fail"
        assert "ALOFT_RUNTIME=virtual" in report["runtime"]["fix"]

    def doctor(self, installed: Environment) -> None:
        report = _doctor(installed, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
        assert {name: entry["status"] for name, entry in report.items() if entry["status"] == "fail"} == {}

    def second_platform_plugin(self, installed: Environment) -> None:
        rival = installed.site / "vllm_ascend-9.9.dist-info"
        rival.mkdir()
        (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 9.9\n")
        (rival / "entry_points.txt").write_text("[vllm.platform_plugins]\nascend = fake_ascend:register\n")
        (installed.site / "fake_ascend.py").write_text("def register():\n    return 'fake_ascend.Platform'\n")
        plugins = _doctor(installed)["plugins"]
        assert plugins["status"] == "warn"
        assert "VLLM_PLUGINS=aloft" in plugins["fix"] and "VLLM_PLUGINS=ascend" in plugins["fix"]
        assert _doctor(installed, VLLM_PLUGINS="aloft")["plugins"]["status"] == "ok"
        assert _doctor(installed, VLLM_PLUGINS="ascend")["plugins"]["status"] == "fail"

    def broken_library(self, installed: Environment, tmp_path: Path) -> None:
        """Python itself starts whatever lies in the library folder, and says what is wrong."""
        folder = tmp_path / "lib"
        folder.mkdir()
        (folder / "libascendcl.so").write_text("not a library")
        result = installed.run("-c", "print('alive')", ALOFT_LIB_DIR=str(folder))
        assert result.stdout == "alive\n"
        assert "aloft doctor" in result.stderr and len(result.stderr.splitlines()) == 1
        assert _doctor(installed, ALOFT_LIB_DIR=str(folder))["libraries"]["status"] == "fail"


def test_without_libraries_for_a_cann_host(environment: Environment, sources: Sources, tmp_path: Path) -> None:
    options = [option for option in sources.options() if "build-dir" not in option]
    environment.pip("wheel", "-w", tmp_path, *options, sources.folder, ALOFT_BUILD="none", PATH="/nonexistent")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "aloft/cli/main.py" in names
    assert not [name for name in names if name.endswith((".so", ".pth"))]
    environment.pip("install", "--no-deps", wheel)
    libraries = _doctor(environment)["libraries"]
    assert libraries["status"] == "fail" and "ALOFT_BUILD=none" in libraries["fix"]
    assert _doctor(environment, ALOFT_RUNTIME="cann")["libraries"]["status"] == "ok"
    refused = environment.run(environment.root / "bin" / "aloft", "run", "--", "python", "-c", "pass")
    assert refused.returncode == 1 and "aloft doctor" in refused.stderr


def test_sdist_holds_no_build_products(sources: Sources) -> None:
    listing = subprocess.run(["tar", "tzf", sources.sdist], capture_output=True, text=True, check=True).stdout.split()
    names = [name.split("/", 1)[1] for name in listing]
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "src/_aloft_preload.py", "src/aloft_preload.pth"} <= set(
        names
    )
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith((".venv", "build"))]
    for folder in ("csrc", "src", "cmake"):
        here = {str(path.relative_to(REPOSITORY)) for path in git_files(folder)}
        assert {name for name in names if name.startswith(f"{folder}/") and not name.endswith("/")} == here


def _doctor(environment: Environment, **variables: str) -> dict[str, dict[str, str]]:
    """The checks by name; the slow one, which imports torch, only where the loading of torch_npu is not turned off."""
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables}
    result = environment.run(environment.root / "bin" / "aloft", "doctor", "--json", **variables)
    assert result.stdout, result.stderr
    return {entry["name"]: entry for entry in json.loads(result.stdout)["checks"]}


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
