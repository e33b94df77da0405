"""Tiny models shared by the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tiny

    return tiny.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "calibration.txt"
    lines = (f"Line {n}: {n * n} is the square of {n}, {n % 7} what is left by seven.\n" for n in range(400))
    file.write_text("".join(lines))
    return file
