"""Compact bf16 weights: nothing is lost, and products have the bits of the plain ones, on every instruction set."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matmul_call import LIBRARY, Weight, fractal_nz, prepare, round_to, run

make = LIBRARY._ZN5aloft7compact4makeEPvll
make.argtypes, make.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), ctypes.c_bool
HAS_FORM = LIBRARY._ZN5aloft3isaEv() >= 2
needs_form = pytest.mark.skipif(not HAS_FORM, reason="the form is made where there is AVX-512")
_to_rows = LIBRARY._ZN5aloft10nz_to_rowsEPKvPvRKNS_7NzShapeEm
SPECIAL = (0x0000, 0x8000, 0x7F80, 0xFF80, 0x0001, 0x8040)  # zeros, infinities, denormals
ROWS = (1, 2, 3, 5, 6, 7, 8, 16, 17, 32, 33, 70, 150)


class _NzShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "rows", "cols", "r0", "c0")]


def trained(k: int, n: int, exceptions: int = 0, seed: int = 0) -> np.ndarray:
    """bf16 [k, n] as of a trained layer; some values of a size that no other has."""
    draw = np.random.default_rng([seed, k, n])
    values = draw.uniform(0.01, 1, (k, n)).astype(np.float32) * draw.choice([-1, 1], (k, n))
    rare = draw.choice(k * n, exceptions, replace=False)
    stored = round_to(values, "bfloat16")
    bits = draw.integers(0, 1 << 16, exceptions).astype(np.uint16)
    bits[: len(SPECIAL)] = SPECIAL[:exceptions]
    stored.ravel()[rare] = np.where((bits & 0x7F80) == 0x7F80, bits & 0xFF80, bits)  # infinities, no NaN
    return stored


def compacted(stored: np.ndarray) -> np.ndarray:
    """The memory of the matrix in FRACTAL_NZ, compact."""
    panels = fractal_nz(stored)
    assert make(panels.ctypes.data, *stored.shape)
    return panels


def rows_of(memory: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    rows = np.empty(shape, np.uint16)
    _to_rows(
        ctypes.c_void_p(memory.ctypes.data),
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.byref(_NzShape(1, *shape, 16, 16)),
        ctypes.c_size_t(2),
    )
    return rows


def product(a: np.ndarray, memory: np.ndarray, k: int, n: int, *, transposed: bool = False) -> np.ndarray:
    out = np.full((a.shape[0], n), 0x7F7F, np.uint16)
    weight = Weight(memory, 2, n) if transposed else Weight(memory, 1, k)
    run(prepare(a, weight, out, "bfloat16"))
    return out


SHAPES = [(128, 128, 0), (32, 1024, 3), (576, 960, 40), (1536, 576, 0), (160, 496, 100), (2048, 48, 9)]


@needs_form
@pytest.mark.parametrize(("k", "n", "exceptions"), SHAPES)
def test_nothing_is_lost(k: int, n: int, exceptions: int) -> None:
    stored = trained(k, n, exceptions)
    memory = compacted(stored)
    assert not np.array_equal(memory, fractal_nz(stored))
    assert np.array_equal(rows_of(memory, (k, n)), stored)
    assert np.array_equal(rows_of(memory.copy(), (k, n)), stored)
    assert not make(memory.ctypes.data, k, n)  # twice is once
    memory[...] = fractal_nz(stored)
    assert np.array_equal(rows_of(memory, (k, n)), stored)


@needs_form
@pytest.mark.parametrize(("k", "n", "exceptions"), SHAPES)
def test_products_are_those_of_plain_weights(k: int, n: int, exceptions: int) -> None:
    stored = trained(k, n, exceptions)
    memory, plain = compacted(stored), fractal_nz(stored)
    turned = trained(n, k, exceptions) if n % 32 == 0 else None
    for m in ROWS:
        a = round_to(np.random.default_rng(m).standard_normal((m, k), np.float32), "bfloat16")
        assert np.array_equal(product(a, memory, k, n), product(a, plain, k, n)), m
        if turned is not None:
            assert np.array_equal(
                product(a, compacted(turned), k, n, transposed=True),
                product(a, fractal_nz(turned), k, n, transposed=True),
            )


def test_a_weight_is_left_as_it_is_where_nothing_is_gained() -> None:
    for stored in (trained(64, 64), trained(48, 1024), trained(128, 200), trained(512, 512, 6000)):
        panels = fractal_nz(stored)
        before = panels.copy()
        assert not make(panels.ctypes.data, *stored.shape)
        assert np.array_equal(panels, before)
    if not HAS_FORM:
        stored = trained(576, 960)
        assert not make(fractal_nz(stored).ctypes.data, *stored.shape)
    draw = np.random.default_rng(0).integers(0, 1 << 16, (256, 256)).astype(np.uint16)  # all exponents alike
    assert not make(draw.ctypes.data, 256, 256)


@needs_form
@pytest.mark.skipif("ALOFT_ISA" in os.environ, reason="starts the others")
def test_with_vectors_only() -> None:
    environment = dict(os.environ, ALOFT_ISA="avx512")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).name],
        env=environment, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


READ = """
import sys, numpy as np, test_compact as t
memory, plain = np.load(sys.argv[1]), np.load(sys.argv[2])
k, n = 576, 960
assert not t.make(plain.copy().ctypes.data, k, n)  # reads nothing faster here
assert np.array_equal(t.rows_of(memory, (k, n)), t.rows_of(plain, (k, n)))
for m in t.ROWS:
    a = t.round_to(np.random.default_rng(m).standard_normal((m, k), np.float32), "bfloat16")
    assert np.array_equal(t.product(a, memory, k, n), t.product(a, plain, k, n)), m
"""


@needs_form
@pytest.mark.skipif("ALOFT_ISA" in os.environ, reason="starts the others")
@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_read_where_it_is_not_made(isa: str, tmp_path: Path) -> None:
    """Memory may come from another process."""
    stored = trained(576, 960, 40)
    np.save(tmp_path / "compact.npy", compacted(stored))
    np.save(tmp_path / "plain.npy", fractal_nz(stored))
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "compact.npy", tmp_path / "plain.npy"],
        env=dict(os.environ, ALOFT_ISA=isa), cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
