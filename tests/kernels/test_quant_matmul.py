"""Quantised products: integer sums exactly, whatever the values, layout, rows, threads and instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from matmul_call import LIBRARY, round_to, widen
from quant_call import LAYOUTS, lay_out, quant_matmul, widen_matmul

SHAPES = [(1, 1, 1), (1, 33, 5), (2, 64, 64), (3, 100, 31), (4, 17, 130), (5, 48, 96), (16, 32, 64), (33, 70, 200)]
SHAPES += [
    (40, 129, 577),
    (70, 33, 2100),
    (1, 128, 1100),
    (515, 40, 65),
    (8, 128, 576),
    (100, 300, 192),
    (31, 80, 1536),
]
BITS = (8, 4)


def integers(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape, np.int64)


def operands(m: int, n: int, k: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    half = 1 << (bits - 1)
    return integers(0, -128, 128, m, k), integers(1, -half, half, k, n)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_exact(bits: int, layout: str) -> None:
    for m, n, k in SHAPES:
        a, w = operands(m, n, k, bits)
        lines = (32, 64) if bits == 4 and "panels" in layout else (32,)
        for line in lines:
            got = quant_matmul(a, lay_out(w, bits, layout, line), "int32")
            assert np.array_equal(got, a @ w), (m, n, k, line)


@pytest.mark.parametrize("bits", BITS)
def test_nothing_saturates_or_overflows(bits: int) -> None:
    """The largest products there are, alone and alternating, up to the longest k that hardware takes."""
    half = 1 << (bits - 1)
    for k in (1, 7, 64, 1000, 65535):
        for x in (-128, 127):
            for y in (-half, half - 1):
                for m, n in ((1, 33), (1, 64), (2, 33), (5, 33), (17, 33)):
                    a, w = np.full((m, k), x), np.full((k, n), y)
                    a[0, ::3], w[1::5, ::2] = -128, half - 1
                    for layout in LAYOUTS:
                        got = quant_matmul(a, lay_out(w, bits, layout), "int32")
                        assert np.array_equal(got, a @ w), (k, x, y, m, layout)


def finished(a: np.ndarray, w: np.ndarray, scale: np.ndarray, rows: np.ndarray, bias: np.ndarray) -> np.ndarray:
    value = (a @ w).astype(np.float32) * scale.astype(np.float32)
    return value * rows.astype(np.float32)[:, None] + bias.astype(np.float32)


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_the_steps_after_the_sums_are_single_fp32_operations(dtype: str) -> None:
    m, n, k = 19, 75, 130
    a, w = operands(m, n, k, 8)
    rng = np.random.default_rng(2)
    scale, rows, bias = rng.random(n) * 1e-3, rng.random(m), rng.standard_normal(n)
    expected = round_to(finished(a, w, scale, rows, bias), dtype)
    got = quant_matmul(a, lay_out(w, 8, "panels"), dtype, scale=scale, row_scale=rows, bias=bias)
    assert np.array_equal(got, expected)
    whole = integers(3, -5000, 5000, n)
    value = (a @ w + whole).astype(np.float32) * np.float32(0.01)
    got = quant_matmul(a, lay_out(w, 8, "rows"), dtype, scale=np.array([0.01]), integer_bias=whole)
    assert np.array_equal(got, round_to(value, dtype))
    offset = integers(4, -20, 20, n)
    bytes_ = np.clip(np.rint((a @ w).astype(np.float32) * scale.astype(np.float32)) + offset, -128, 127)
    got = quant_matmul(a, lay_out(w, 8, "cols"), "int8", scale=scale, out_offset=offset)
    assert np.array_equal(got, bytes_.astype(np.int8))


@pytest.mark.parametrize("m", (8, 200))
def test_denormal_results_are_rounded_and_kept(m: int) -> None:
    n, k = 96, 128
    a, w = operands(m, n, k, 8)
    rng = np.random.default_rng(4)
    rows = rng.random(m).astype(np.float32) * np.float32(1e-20)
    for size in (1e-24, 1e-20, 1e-17):  # of results: denormal in fp32, in part, not
        scale = rng.random(n).astype(np.float32) * np.float32(size)
        value = (a @ w).astype(np.float32) * scale * rows[:, None]
        got = quant_matmul(a, lay_out(w, 8, "panels"), "bfloat16", scale=scale, row_scale=rows)
        assert np.array_equal(got, round_to(value, "bfloat16")), size


@pytest.mark.parametrize("bits", BITS)
def test_a_gated_product_is_the_gate_of_the_product(bits: int) -> None:
    n, k = 256, 576
    for m, group in ((1, 0), (1, 96), (8, 0), (33, 64), (70, 0), (140, 128)):
        a, w = operands(m, n, k, bits)
        rng = np.random.default_rng([11, m])
        groups = -(-k // group) if group else 1
        scale, rows = rng.random((groups, n)) * 1e-4, rng.random(m)
        for layout in LAYOUTS:
            weight = lay_out(w, bits, layout)
            both = widen(quant_matmul(a, weight, "bfloat16", scale=scale, group=group, row_scale=rows), "bfloat16")
            act, up = both[:, : n // 2].astype(np.float64), both[:, n // 2 :].astype(np.float64)
            got = quant_matmul(a, weight, "bfloat16", scale=scale, group=group, row_scale=rows, gated=True)
            expected = act / (1 + np.exp(-act)) * up
            assert np.allclose(widen(got, "bfloat16"), expected, rtol=2.0**-8 * 1.01, atol=1e-30), (m, layout)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", (32, 64, 96, 128, 256))
def test_groups_are_added_in_order(bits: int, group: int) -> None:
    for m, n, k in ((1, 64, 512), (1, 448, 1100), (3, 70, 576), (37, 40, 320), (12, 128, 512), (133, 96, 576)):
        a, w = operands(m, n, k, bits)
        groups = -(-k // group)
        rng = np.random.default_rng([5, k])
        scale, rows = rng.random((groups, n)).astype(np.float32), rng.random(m).astype(np.float32)
        zero = rng.standard_normal((groups, n)).astype(np.float32)
        for offsets in (None, zero):
            total = np.zeros((m, n), np.float32)
            for g in range(groups):
                part = slice(g * group, (g + 1) * group)
                f = (a[:, part] @ w[part]).astype(np.float32)
                if offsets is not None:
                    f = f - offsets[g] * a[:, part].sum(1, keepdims=True).astype(np.float32)
                total = f * scale[g] if g == 0 else total + f * scale[g]
            expected = total * rows[:, None]
            for layout in LAYOUTS:
                weight = lay_out(w, bits, layout)
                got = quant_matmul(a, weight, "float32", scale=scale, group=group, zero=offsets, row_scale=rows)
                assert np.array_equal(got, expected), (m, n, k, layout, offsets is None)
                if m == 1 and offsets is None:
                    got = quant_matmul(
                        a, weight, "float32", scale=scale, group=group, row_scale=rows, packed_scale=True
                    )
                    assert np.array_equal(got, expected), (m, n, k, layout, "int64")


@pytest.mark.parametrize("bits", BITS)
def test_a_row_depends_on_nothing_else(bits: int) -> None:
    m, n, k = 200, 96, 576
    a, w = operands(m, n, k, bits)
    rng = np.random.default_rng(6)
    scale, rows = rng.random(n), rng.random(m)
    stored = round_to(rng.standard_normal((m, k)).astype(np.float32), "bfloat16")
    for layout in LAYOUTS:
        weight = lay_out(w, bits, layout)
        whole = quant_matmul(a, weight, "bfloat16", scale=scale, row_scale=rows)
        wide = widen_matmul(stored, "bfloat16", weight, "bfloat16", scale)
        for first, count in ((0, 1), (7, 2), (30, 3), (50, 4), (60, 5), (90, 16), (100, 33)):
            part = slice(first, first + count)
            got = quant_matmul(a[part], weight, "bfloat16", scale=scale, row_scale=rows[part])
            assert np.array_equal(got, whole[part]), (layout, first, count)
            got = widen_matmul(stored[part], "bfloat16", weight, "bfloat16", scale)
            assert np.array_equal(got, wide[part]), (layout, first, count)
        for threads in (1, 3):
            assert LIBRARY.aloftSetNumThreads(threads) == 0
            assert np.array_equal(quant_matmul(a, weight, "bfloat16", scale=scale, row_scale=rows), whole)
            assert np.array_equal(widen_matmul(stored, "bfloat16", weight, "bfloat16", scale), wide)
        LIBRARY.aloftSetNumThreads(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("bits", BITS)
def test_widened_weights(bits: int, dtype: str) -> None:
    half = 1 << (bits - 1)
    for m, n, k, group in (
        (1, 40, 64, 0),
        (1, 200, 576, 96),
        (1, 192, 1100, 0),
        (2, 130, 200, 64),
        (5, 33, 576, 32),
        (30, 64, 257, 128),
    ):
        groups = -(-k // group) if group else 1
        rng = np.random.default_rng([7, m])
        stored = round_to(rng.standard_normal((m, k)).astype(np.float32), dtype)
        w = integers(8, -half, half, k, n)
        scale, zero = rng.random((groups, n)).astype(np.float32), rng.integers(-4, 5, (groups, n)).astype(np.float32)
        spread = np.arange(k) // (group or k)
        exact = widen(stored, dtype).astype(np.float64) @ ((w + zero[spread]) * scale[spread])
        magnitude = np.abs(widen(stored, dtype)).astype(np.float64) @ ((np.abs(w) + 4) * scale[spread])
        first = None
        for layout in LAYOUTS:
            got = widen_matmul(stored, dtype, lay_out(w, bits, layout), "float32", scale, group=group, zero=zero)
            assert np.max(np.abs(got - exact) / (magnitude * 2.0**-24 * 40)) <= 1
            first = got if first is None else first
            assert np.array_equal(got, first), layout


def extremes() -> None:
    """The largest sums of one sign that are possible, and rows that alternate, on every path of the kernels."""
    for bits in BITS:
        half = 1 << (bits - 1)
        for m, n, k in ((1, 32, 64), (3, 33, 1000), (8, 64, 2048), (40, 64, 1001)):
            for x in (-128, 127):
                for y in (-half, half - 1):
                    a, w = np.full((m, k), x), np.full((k, n), y)
                    w[:, 1::2] = half - 1
                    a[-1, ::2] = -128
                    for layout in LAYOUTS:
                        assert np.array_equal(quant_matmul(a, lay_out(w, bits, layout), "int32"), a @ w), (x, y, layout)


def digest() -> int:
    """One number for everything the kernels give on a set of calls."""
    extremes()
    value = 0
    for bits in BITS:
        for m, n, k, group in (
            (1, 128, 576, 64),
            (3, 70, 131, 0),
            (8, 128, 576, 0),
            (50, 64, 256, 128),
            (131, 128, 320, 64),
        ):
            a, w = operands(m, n, k, bits)
            rng = np.random.default_rng(9)
            groups = -(-k // group) if group else 1
            scale, rows, bias = rng.random((groups, n)), rng.random(m), rng.standard_normal(n)
            stored = round_to(rng.standard_normal((m, k)).astype(np.float32), "float16")
            for layout in LAYOUTS:
                weight = lay_out(w, bits, layout)
                for dtype in ("bfloat16", "float16", "float32"):
                    got = quant_matmul(a, weight, dtype, scale=scale, group=group, row_scale=rows, bias=bias)
                    value = zlib.crc32(got.tobytes(), value)
                got = widen_matmul(stored, "float16", weight, "float32", scale, group=group, zero=scale, bias=bias)
                value = zlib.crc32(got.tobytes(), value)
    return value


def test_every_instruction_set_gives_the_same_bits() -> None:
    code = "import test_quant_matmul as t; print(t.digest())"
    seen = {}
    for isa in ("portable", "avx2", "avx512", "amx"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env={**os.environ, "ALOFT_ISA": isa},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if "is not available on this processor" in done.stderr or done.returncode == -6:
            continue  # the rest of the list needs more than this machine has
        assert done.returncode == 0, done.stderr[-2000:]
        seen[isa] = int(done.stdout)
    assert len(seen) >= 2
    assert len(set(seen.values())) == 1, seen
