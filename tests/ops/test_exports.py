"""The list of served aclnn operators is read from the library itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from aloft.ops.exports import exported_symbols, served_operators
from aloft.runtime.choice import library_folder


def test_served_operators_can_be_called() -> None:
    path = library_folder() / "libopapi.so"
    names = served_operators(path)
    assert {"aclnnRmsNorm", "aclnnSort", "aclnnApplyTopKTopP"} <= set(names)
    assert names == sorted(names)
    library = ctypes.CDLL(str(path))
    for name in names:
        assert hasattr(library, name) and hasattr(library, f"{name}GetWorkspaceSize"), name


def test_symbols_are_the_exported_ones() -> None:
    symbols = exported_symbols(library_folder() / "libopapi.so")
    assert "aclCreateTensor" in symbols
    assert "aclrtMalloc" not in symbols  # libascendcl's: only used here


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "not_a_library"
    path.write_text("text")
    with pytest.raises(ValueError, match="not a 64-bit"):
        exported_symbols(path)
