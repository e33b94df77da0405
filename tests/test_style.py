"""What keeps the tree small, safe and honest: sizes, banned constructs, frozen public names."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import tomllib
from pathlib import Path

import pytest

import aloft
from aloft.runtime.choice import LIBRARIES

ROOT = Path(__file__).resolve().parents[1]
PYTHON_LIMIT, PYTHON_MEDIAN, CPP_LIMIT = 20_000, 5_000, 32_000


def tracked(*patterns: str) -> list[Path]:
    """Files git knows, or would take, that match the patterns."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()})


PYTHON = tracked("src/**.py", "src/*.py")
CPP = tracked("csrc/**.cpp", "csrc/**.h", "csrc/**.inl")


def test_files_were_found() -> None:
    """The other tests here would pass on an empty list."""
    assert len(PYTHON) > 10 and len(CPP) > 10


def test_every_folder_of_tests_is_run() -> None:
    script = (ROOT / "tests" / "run.sh").read_text()
    folders = {path.parent.relative_to(ROOT).as_posix() for path in tracked("tests/**/test_*.py", "tests/*/test_*.py")}
    assert {folder for folder in folders if folder != "tests" and folder not in script} == set()


def test_module_sizes() -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in PYTHON if path.stat().st_size > PYTHON_LIMIT}
    large |= {str(path.relative_to(ROOT)): path.stat().st_size for path in CPP if path.stat().st_size > CPP_LIMIT}
    assert large == {}, "split by responsibility"
    sizes = [path.stat().st_size for path in PYTHON if path.stat().st_size > 0]
    assert statistics.median(sizes) <= PYTHON_MEDIAN


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_dangerous_calls(path: Path) -> None:
    """No pickle, no torch.load, no eval or exec, no shell."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & {name.split(".")[0] for name in names}
            assert not banned, f"line {node.lineno}: {banned}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "torch.load", "os.system", "os.popen"}, (
                f"line {node.lineno}: {called}"
            )
            shell = [word.value for word in node.keywords if word.arg == "shell"]
            assert not any(isinstance(value, ast.Constant) and value.value for value in shell), f"line {node.lineno}"


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_above_the_runtime_asks_which_runtime(path: Path) -> None:
    """Only runtime/, the start-up hook and the tools for people know whether the NPU is virtual."""
    parts = path.relative_to(ROOT / "src").parts
    if parts[0] == "_aloft_preload.py" or parts[:2] in {("aloft", "runtime"), ("aloft", "cli")}:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            condition = ast.unparse(node.test).lower()
            assert "virtual" not in condition and "cann" not in re.split(r"\W|_", condition), f"line {node.lineno}"


def test_no_vendor_header() -> None:
    """Own declarations only: no header of CANN, torch_npu or op-plugin is included, and none lies in the tree."""
    vendor = re.compile(
        r'#\s*include\s*[<"](acl/|aclnn|hccl/|ge/|graph/|torch_npu|op_plugin|experiment/|toolchain/|runtime/rt)'
    )
    own = {str(path.relative_to(ROOT / "csrc")) for path in CPP}
    for path in CPP:
        for line in path.read_text().splitlines():
            if vendor.search(line):
                name = re.search(r'[<"]([^>"]+)[>"]', line).group(1)
                assert name in own, f"{path}: {line}"


def test_torch_headers() -> None:
    """torch is seen from csrc/torch only, and through narrow headers."""
    header = re.compile(r"#\s*include\s*[<\"]((?:torch|ATen|c10|caffe2)/[^>\"]+)")
    for path in CPP:
        for name in header.findall(path.read_text()):
            assert path.is_relative_to(ROOT / "csrc/torch"), f"{path} includes {name}"
            assert name not in {
                "torch/extension.h",
                "torch/torch.h",
                "torch/all.h",
                "ATen/ATen.h",
                "ATen/Functions.h",
            }, path


def test_instruction_set_files_are_only_reached_by_dispatch() -> None:
    """Intrinsics of an instruction set appear only in files compiled for it."""
    for path in CPP:
        text = path.read_text()
        if re.search(r"\b_mm512_", text):
            assert re.search(r"512|_amx$", path.stem) or "AVX512" in text, path
        if re.search(r"\b_tile_\w+\(", text):
            assert path.stem == "tiles" or path.stem.endswith("_amx"), path
            if path.name.endswith("_amx.h"):
                users = [other for other in CPP if f'"kernels/{path.name}"' in other.read_text()]
                assert users and all(other.name.endswith("_amx.cpp") for other in users), path
        if path.suffix == ".cpp" and re.search(r"\b_mm256_", text):
            assert re.search(r"_(avx2|avx512|amx)\.cpp$", path.name), path


def test_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == aloft.__version__


def test_no_path_of_a_developer_machine() -> None:
    """Nor a registry's host: whoever builds names his own."""
    telling = re.compile(r"(?<![\w.}])/(?:work|root|home)/[a-z]|pypi\.org|pythonhosted|deb\.debian|registry\.npmjs")
    for path in tracked():
        if path == Path(__file__).resolve() or path.suffix in {".png", ".so"}:
            continue
        found = telling.search(path.read_text(errors="replace"))
        assert not found, f"{path.relative_to(ROOT)}: {found.group()}"


def test_library_lists_agree() -> None:
    """The start-up hook, the command and the build name the same libraries."""
    hook = ast.parse((ROOT / "src/_aloft_preload.py").read_text())
    (loaded,) = [
        ast.literal_eval(node.value)
        for node in hook.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LIBRARIES"
    ]
    cmake = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "csrc/torch/CMakeLists.txt").read_text()
    built = set(re.findall(r"^aloft_library\((\w+)", cmake, re.MULTILINE))
    built |= set(re.search(r"foreach\(companion ([\w ]+)\)", cmake).group(1).split())
    assert set(LIBRARIES) == built
    # The kernels come with what links against them; csrc/torch is loaded once torch is, csrc/cuda_torch only for a
    # torch that needs it.
    assert set(loaded) == built - {"aloft_kernels", "aloft_torch", "aloft_cuda_torch"}


def test_requirements_are_pinned() -> None:
    for path in tracked("requirements/*.txt"):
        for line in path.read_text().splitlines():
            assert not line or line.startswith("#") or "==" in line, f"{path.name}: {line}"


def environment_names() -> set[str]:
    """Every environment variable of ours that the sources read."""
    names: set[str] = set()
    for path in PYTHON:
        names |= set(re.findall(r"[\"'](ALOFT_[A-Z0-9_]+)[\"']", path.read_text()))
    for path in CPP:
        names |= set(re.findall(r"[\"](ALOFT_[A-Z0-9_]+)[\"]", path.read_text()))
    return names


def test_environment_is_frozen() -> None:
    """docs/configuration.md lists the environment variables, all of them and no other: a new one is a decision."""
    documented = set(
        re.findall(r"^\| `(ALOFT_[A-Z0-9_]+)`", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE)
    )
    # Read while installing, not by the sources.
    assert documented - {"ALOFT_BUILD"} == environment_names()


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports test modules, and what they import from beside them, by their bare names."""
    names: dict[str, list[str]] = {}
    for path in tracked("tests/**/*.py", "tests/*.py"):
        if path.name not in {"conftest.py", "__init__.py"} and "fake_vllm" not in path.parts:
            names.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}
