"""The runtime without torch: the stress test of tests/csrc, under ThreadSanitizer and AddressSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILDS = Path(os.environ.get("ALOFT_NATIVE_BUILD_DIR", ROOT / "build"))
MODES = ("inline", "async", "fuzz")
pytestmark = pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")


@pytest.fixture(scope="module", params=["thread", "address"])
def program(request: pytest.FixtureRequest) -> Path:
    """The stress test built with a sanitizer; kept between runs."""
    folder = BUILDS / f"native-{request.param}"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if not (folder / "CMakeCache.txt").exists():
        options = ["-DALOFT_NATIVE_TESTS=ON", "-DALOFT_WITH_TORCH=OFF", f"-DALOFT_SANITIZE={request.param}"]
        run(["cmake", "-S", str(ROOT), "-B", str(folder), *options], environment, 120)
    run(["cmake", "--build", str(folder), "--target", "runtime_stress", "-j2"], environment, 900)
    return folder / "tests" / "csrc" / "runtime_stress"


def run(command: list[str], environment: dict[str, str], timeout: float) -> str:
    result = subprocess.run(command, env=environment, timeout=timeout, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout[-3000:]}\n{result.stderr[-6000:]}"
    return result.stdout


@pytest.mark.parametrize("mode", MODES)
def test_stress(program: Path, mode: str) -> None:
    environment = {
        **os.environ,
        "ALOFT_STREAMS": mode,
        "ALOFT_HBM_GIB": "0.5",
        "ALOFT_HOST": f"stress-{os.getpid()}",
        "ALOFT_THREADS": "3",
        "TSAN_OPTIONS": "halt_on_error=1",
        "LD_PRELOAD": "",
    }
    output = run([str(program), "1"], environment, 120)
    assert output.count(": ok") == 26, output
