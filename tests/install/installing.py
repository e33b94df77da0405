"""Fresh environments to install into, and the sources that are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from aloft.runtime.choice import library_folder

REPOSITORY = Path(__file__).resolve().parents[2]


def clean_environment() -> dict[str, str]:
    """The environment without anything that chooses a runtime or another Python path."""
    ours = ("ALOFT_", "VLLM_", "ASCEND_", "PYTHON", "TORCH_", "LD_LIBRARY_PATH", "TASK_QUEUE", "COVERAGE_", "COV_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def git_files(*patterns: str) -> list[Path]:
    """Files git knows, or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listing = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return sorted({REPOSITORY / name for name in listing.split("\0") if name and (REPOSITORY / name).is_file()})


def run(command: list[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a clean environment; output is text."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@dataclass
class Environment:
    """A fresh virtual environment that sees the packages of ours, aloft itself left out."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        return next((self.root / "lib").glob("python3*/site-packages"))

    def run(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python, outside the repository."""
        return run([self.python, *arguments], cwd=self.root, **environment)

    def pip(self, *arguments: str | Path, cwd: Path | None = None, **environment: str) -> None:
        """Run pip for this environment, offline; fails the test where pip fails."""
        variables = {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PIP_NO_INDEX": "1",
            # cmake and ninja lie beside the Python that runs the tests
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **environment,
        }
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        result = run(command, cwd=cwd or self.root, **variables)
        assert result.returncode == 0, result.stdout + result.stderr


@dataclass
class Sources:
    """The unpacked sdist and where it is compiled."""

    folder: Path
    sdist: Path
    build: Path

    def options(self) -> list[str]:
        """Options of pip that build here and only once.

        Compiling takes minutes and is what `make build` has just done with the same files: the libraries it made are
        packed. ALOFT_TEST_FULL_BUILD=1 (continuous integration) compiles what the sdist holds.
        """
        compiled = "-Ccmake.build-type=Debug"
        packed = f"-Ccmake.define.ALOFT_PREBUILT={library_folder().resolve()}"
        full = os.environ.get("ALOFT_TEST_FULL_BUILD") == "1"
        return ["--no-build-isolation", "--no-deps", f"-Cbuild-dir={self.build}", compiled if full else packed]
