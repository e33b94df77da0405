"""Each failure `aloft doctor` knows is made, and its fix is named."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from aloft import __version__
from aloft.cli import checks
from aloft.cli.doctor import doctor
from aloft.runtime import choice


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALOFT_RUNTIME", "ALOFT_LIB_DIR", "VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choice, "device_nodes", list)


def with_versions(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    have = {"torch": "2.13.0+cpu", "torch_npu": "2.13.0", "vllm": "0.32.0+empty", **versions}
    monkeypatch.setattr(checks, "package_version", have.get)


def test_report_is_json_with_all_checks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fast = tuple(check for check in checks.CHECKS if check not in (checks.check_torch, checks.check_hook))
    monkeypatch.setattr("aloft.cli.doctor.CHECKS", (*fast, lambda: checks.Check("last", "fail", "broken", "mend it")))
    assert doctor(json_output=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"version", "ok", "device", "checks"}
    assert report["version"] == __version__ and report["ok"] is False and report["device"].startswith("npu:0, virtual")
    assert all(set(check) == {"name", "status", "found", "fix"} for check in report["checks"])
    assert len(report["checks"]) == len(fast) + 1
    assert doctor(json_output=False) == 1
    text = capsys.readouterr().out
    assert "FAIL  last" in text and "-> mend it" in text and "Not ready" in text


def test_all_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("aloft.cli.doctor.CHECKS", (checks.check_python,))
    assert doctor(json_output=False) == 0
    assert "Ready: aloft" in capsys.readouterr().out


def test_a_check_that_breaks_is_a_failed_check() -> None:
    def check_thing() -> checks.Check:
        raise OSError("no such thing")

    assert checks.run_check(check_thing) == checks.Check(
        "thing", "fail", "could not be checked: OSError: no such thing", "please report this"
    )


@pytest.mark.parametrize(
    ("versions", "status", "fix"),
    [
        ({}, "ok", ""),
        ({"torch": "2.14.1"}, "fail", "install torch==2.13.0; torch and torch_npu must have the same version"),
        ({"torch_npu": None}, "fail", "install torch_npu==2.13.0"),
        ({"vllm": "0.31.0"}, "fail", "install vllm==0.32.0"),
        ({"vllm": None}, "warn", "torch programs work"),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None], status: str, fix: str) -> None:
    with_versions(monkeypatch, **versions)
    check = checks.check_versions()
    assert check.status == status and check.fix.startswith(fix)


@pytest.mark.parametrize(("gib", "status"), [(20.0, "ok"), (3.0, "warn"), (0.5, "fail")])
def test_memory(monkeypatch: pytest.MonkeyPatch, gib: float, status: str) -> None:
    monkeypatch.setattr(checks, "free_memory", lambda: int(gib * checks.GIB))
    assert checks.check_memory().status == status


def test_free_memory_is_plausible() -> None:
    assert 0 < checks.free_memory() < 1 << 50


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["avx2", "fma", "f16c", "avx512bw"], "ok", "AVX-512"),
        (["avx2", "fma"], "warn", "no f16c"),
        ([], "warn", "avx2"),
    ],
)
def test_cpu(monkeypatch: pytest.MonkeyPatch, flags: list[str], status: str, words: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(checks, "_cpu_flags", lambda: flags)
    assert checks.check_cpu().status == status and words in checks.check_cpu().found


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert checks.check_python().status == "fail" and "aarch64" in checks.check_python().fix


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(choice, "missing_libraries", str)
    assert checks.check_compiler().status == "ok"
    monkeypatch.setattr(choice, "missing_libraries", lambda: "no libascendcl.so")
    assert checks.check_compiler().status == "fail" and "g++" in checks.check_compiler().fix


class TestLibraries:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in choice.LIBRARIES:
            (tmp_path / f"lib{name}.so").touch()
        (tmp_path / "build.json").write_text(json.dumps({"version": __version__, "torch": "2.13.0+cpu"}))
        monkeypatch.setenv("ALOFT_LIB_DIR", str(tmp_path))
        with_versions(monkeypatch)
        return tmp_path

    def test_complete(self, folder: Path) -> None:
        assert checks.check_libraries().status == "ok"

    def test_one_missing(self, folder: Path) -> None:
        (folder / "libhccl.so").unlink()
        check = checks.check_libraries()
        assert check.status == "fail" and "libhccl.so" in check.found and "ALOFT_LIB_DIR" in check.fix

    def test_of_another_version(self, folder: Path) -> None:
        (folder / "build.json").write_text(json.dumps({"version": "0.0.1", "torch": "2.13.0"}))
        assert checks.check_libraries().status == "fail" and "0.0.1" in checks.check_libraries().found

    def test_for_another_torch(self, folder: Path) -> None:
        (folder / "build.json").write_text(json.dumps({"version": __version__, "torch": "2.12.0"}))
        assert checks.check_libraries().status == "fail" and "torch 2.13.0+cpu" in checks.check_libraries().found

    def test_without_record(self, folder: Path) -> None:
        (folder / "build.json").unlink()
        assert checks.check_libraries().status == "fail" and "build.json" in checks.check_libraries().found


class TestRuntime:
    @pytest.fixture
    def cann(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "libascendcl.so").touch()
        monkeypatch.setenv("LD_LIBRARY_PATH", f"/nonexistent:{tmp_path}")
        return tmp_path

    @pytest.fixture
    def node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "davinci0"
        path.touch()
        monkeypatch.setattr(choice, "device_nodes", lambda: [str(path)])
        return path

    def test_virtual(self) -> None:
        check = checks.check_runtime()
        assert check.status == "ok" and check.found.startswith("virtual (ALOFT_RUNTIME=auto")

    def test_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALOFT_RUNTIME", "npu")
        check = checks.check_runtime()
        assert check.status == "fail" and "auto, cann, virtual" in check.found

    def test_cann_without_devices(self, cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        check = checks.check_runtime()
        assert check.status == "warn" and str(cann) in check.found and "device nodes" in check.fix
        monkeypatch.setenv("ALOFT_RUNTIME", "cann")
        check = checks.check_runtime()
        assert check.status == "fail" and "ALOFT_RUNTIME=virtual" in check.fix

    def test_devices_without_cann(self, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        check = checks.check_runtime()
        assert check.status == "fail" and check.found.startswith("cann") and "set_env.sh" in check.fix
        monkeypatch.setenv("ALOFT_RUNTIME", "virtual")
        check = checks.check_runtime()
        assert check.status == "warn" and "not used" in check.fix

    def test_devices_and_cann(self, node: Path, cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert checks.check_runtime().status == "ok"
        monkeypatch.setattr("os.access", lambda *_: False)
        assert checks.check_runtime().status == "fail" and "permission" in checks.check_runtime().fix
        assert checks.check_hook().found == "not needed with CANN"


class TestPlugins:
    @pytest.fixture
    def plugins(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        names = ["aloft"]

        def entry_points(group: str) -> list[metadata.EntryPoint]:
            return [metadata.EntryPoint(name, "module:function", group) for name in names]

        monkeypatch.setattr(metadata, "entry_points", entry_points)
        return names

    def test_alone(self, plugins: list[str]) -> None:
        assert checks.check_plugins().status == "ok"

    def test_ours_missing(self, plugins: list[str]) -> None:
        plugins.remove("aloft")
        assert checks.check_plugins().status == "fail"

    def test_two(self, plugins: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        plugins.append("ascend")
        check = checks.check_plugins()
        assert check.status == "warn" and "VLLM_PLUGINS=aloft" in check.fix and "VLLM_PLUGINS=ascend" in check.fix
        monkeypatch.setenv("VLLM_PLUGINS", "aloft, other")
        assert checks.check_plugins().status == "ok"

    def test_excluded(self, plugins: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_PLUGINS", "ascend")
        check = checks.check_plugins()
        assert check.status == "fail" and "leaves aloft out" in check.fix

    def test_target_device(self, plugins: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
        check = checks.check_plugins()
        assert check.status == "warn" and "VLLM_TARGET_DEVICE=cpu" in check.found


class TestChildProcesses:
    """The checks that ask a new Python process."""

    @pytest.fixture
    def answer(self, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.CompletedProcess[str]]:
        answers: list[subprocess.CompletedProcess[str]] = []
        monkeypatch.setattr(checks, "_python", lambda program, timeout_s: answers[0])
        with_versions(monkeypatch)
        monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
        return answers

    def test_hook_is_active_here(self) -> None:
        assert checks.check_hook().status == "ok"

    def test_hook_not_read(self, answer: list[subprocess.CompletedProcess[str]]) -> None:
        answer.append(subprocess.CompletedProcess([], 0, "False False\n", ""))
        assert checks.check_hook().status == "fail" and "aloft_preload.pth" in checks.check_hook().found

    def test_torch(self, answer: list[subprocess.CompletedProcess[str]]) -> None:
        answer.append(subprocess.CompletedProcess([], 0, "8 Ascend910B3\n", ""))
        assert checks.check_torch().found.startswith("8 x Ascend910B3")

    def test_torch_fails(self, answer: list[subprocess.CompletedProcess[str]]) -> None:
        answer.append(subprocess.CompletedProcess([], 1, "", "Traceback\n  ...\nImportError: libhccl.so"))
        assert checks.check_torch() == checks.Check(
            "torch", "fail", "ImportError: libhccl.so", checks.check_torch().fix
        )

    def test_torch_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
        with_versions(monkeypatch, torch=None)
        assert checks.check_torch().fix == "install torch==2.13.0"

    def test_autoload_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        assert checks.check_torch().status == "warn"

    def test_timeout(self) -> None:
        result = checks._python("import time; time.sleep(9)", timeout_s=0.2)
        assert result.returncode == 1 and "no answer" in result.stderr
