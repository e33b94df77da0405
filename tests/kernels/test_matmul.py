"""Matrix products against float64, for every layout, type and instruction set; and their bits against each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matmul_call import LIBRARY, Weight, lay_out, prepare, round_to, run, widen

DTYPES = ("float32", "float16", "bfloat16")
LAYOUTS = ("kn", "nk", "strided", "nz", "nz_t")
SHAPES = [(1, 1, 1), (1, 17, 3), (2, 16, 31), (3, 31, 16), (5, 100, 257), (7, 48, 300), (13, 33, 64), (17, 130, 576)]
SHAPES += [(29, 70, 513), (40, 5, 33), (150, 37, 40), (1, 300, 777)]
EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def data(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return round_to(np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32), dtype)


def product(a: np.ndarray, weight: Weight, n: int, dtype: str, **options: object) -> np.ndarray:
    out = np.full((a.shape[0], n), 0x7F7F, np.uint16).astype(a.dtype)
    run(prepare(a, weight, out, dtype, **options))  # type: ignore[arg-type]
    return out


def check(got: np.ndarray, dtype: str, exact: np.ndarray, magnitude: np.ndarray, k: int) -> None:
    """One rounding to `dtype` plus an fp32 chain of k steps (bounded by k eps, in practice near its square root)."""
    slack = EPSILON[dtype] * np.abs(exact) + 2.0**-24 * (4 + 4 * k**0.5) * magnitude
    if dtype == "float16":
        slack = slack + 2.0**-25
    worst = np.max(np.abs(widen(got, dtype).astype(np.float64) - exact) / (slack + 1e-30), initial=0)
    assert worst <= 1, worst


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_layouts_against_float64_and_each_other(dtype: str) -> None:
    for m, n, k in SHAPES:
        a, b = data(dtype, m, k), data(dtype, k, n, seed=1)
        exact = widen(a, dtype).astype(np.float64) @ widen(b, dtype).astype(np.float64)
        magnitude = np.abs(widen(a, dtype)).astype(np.float64) @ np.abs(widen(b, dtype))
        first = None
        for how in LAYOUTS:
            got = product(a, lay_out(b, how), n, dtype)
            check(got, dtype, exact, magnitude, k)
            first = got if first is None else first
            assert np.array_equal(got, first), (m, n, k, how)
        column_major = np.asfortranarray(a)
        assert np.array_equal(product(column_major, lay_out(b, "nk"), n, dtype), first), (m, n, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ("nk", "nz", "nz_t"))
def test_a_row_does_not_depend_on_the_batch(dtype: str, how: str) -> None:
    m, n, k = 300, 83, 576
    a, weight = data(dtype, m, k), lay_out(data(dtype, k, n, seed=1), how)
    whole = product(a, weight, n, dtype)
    for first, rows in ((0, 1), (7, 2), (30, 3), (64, 5), (100, 8), (40, 14), (96, 32), (5, 33), (150, 100)):
        part = product(a[first : first + rows], weight, n, dtype)
        assert np.array_equal(part, whole[first : first + rows]), (first, rows)
    for threads in (1, 2, 3):
        assert LIBRARY.aloftSetNumThreads(threads) == 0
        assert np.array_equal(product(a, weight, n, dtype), whole)
    LIBRARY.aloftSetNumThreads(len(os.sched_getaffinity(0)))


def test_a_result_too_large_for_the_caches_is_the_same() -> None:
    m, n, k = 70, 30048, 64  # 4 MB; where it lies decides whether it is written past the caches
    a, weight = data("bfloat16", m, k), lay_out(data("bfloat16", k, n, seed=1), "nz")
    memory = np.full(m * n + 64, 0x7F7F, np.uint16)
    aligned = -memory.ctypes.data % 64 // 2
    for offset in (aligned, aligned + 8):
        out = memory[offset : offset + m * n].reshape(m, n)
        run(prepare(a, weight, out, "bfloat16"))
        for first, rows in ((0, 5), (29, 10), (60, 10)):
            part = product(a[first : first + rows], weight, n, "bfloat16")
            assert np.array_equal(part, out[first : first + rows]), (offset, first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_addend_alpha_beta_and_strided_output(dtype: str) -> None:
    m, n, k = 9, 50, 70
    a, b = data(dtype, m, k), data(dtype, k, n, seed=1)
    exact = widen(a, dtype).astype(np.float64) @ widen(b, dtype).astype(np.float64)
    magnitude = np.abs(widen(a, dtype)).astype(np.float64) @ np.abs(widen(b, dtype)) + 10
    for how in LAYOUTS:
        for addend_dtype in (dtype, "float32"):
            row = data(addend_dtype, n, seed=2)
            for addend in (np.broadcast_to(row, (m, n)), data(addend_dtype, m, n, seed=3), data(addend_dtype, n, m).T):
                wide = np.zeros((m, 2 * n), a.dtype)
                out = wide[:, ::2]
                run(
                    prepare(
                        a, lay_out(b, how), out, dtype, addend=addend, addend_dtype=addend_dtype, alpha=0.5, beta=-2
                    )
                )
                check(out, dtype, 0.5 * exact - 2.0 * widen(addend, addend_dtype), magnitude, k)
                assert not wide[:, 1::2].any()
        poison = np.full((m, n), np.nan, np.float32)  # beta 0: not read
        got = product(a, lay_out(b, how), n, dtype, addend=poison, addend_dtype="float32", beta=0.0)
        check(got, dtype, exact, magnitude, k)
        inplace = data(dtype, m, n, seed=4)
        before = widen(inplace, dtype)
        run(prepare(a, lay_out(b, how), inplace, dtype, addend=inplace, beta=1.0))
        check(inplace, dtype, exact + before, magnitude, k)


def in_order(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """The sums of kernels/matmul.h in float32. float64 holds every step of 16-bit factors exactly enough."""
    flush = dtype == "bfloat16"

    def flushed(values: np.ndarray) -> np.ndarray:
        return np.where(np.abs(values) < 2.0**-126, np.copysign(0, values), values) if flush else values

    left, right = flushed(widen(a, dtype)).astype(np.float64), flushed(widen(b, dtype)).astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k0 in range(0, a.shape[1], 32):
        parts = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(k0, min(k0 + 32, a.shape[1])):
            exact = np.outer(left[:, k], right[k]) + parts[k % 2].astype(np.float64)
            parts[k % 2] = flushed(exact.astype(np.float32))
        both = flushed(parts[0] + parts[1])
        if k0 + 32 > a.shape[1]:
            both += 0  # filled up with zeros: no negative zero
        total = flushed(total + both)
    return total


def test_fp32_output_of_16_bit_operands_is_the_stated_order_before_rounding() -> None:
    for dtype in ("float16", "bfloat16"):
        for m, n, k in ((1, 33, 64), (3, 40, 200), (5, 40, 95), (21, 20, 31), (50, 37, 330)):
            a, b = data(dtype, m, k), data(dtype, k, n, seed=1)
            expected = in_order(a, b, dtype)
            for how in LAYOUTS:
                out = np.zeros((m, n), np.float32)
                run(prepare(a, lay_out(b, how), out, dtype, out_dtype="float32"))
                assert np.array_equal(out, expected), (dtype, m, n, k, how)
                assert np.array_equal(product(a, lay_out(b, how), n, dtype), round_to(expected, dtype))


def tiny(*shape: int, seed: int, exponents: tuple[int, int]) -> np.ndarray:
    """bf16 values of random sign and mantissa, biased exponents low .. high - 1 (0: zeros and denormals)."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 128, shape) | random.integers(0, 2, shape) << 15 | random.integers(*exponents, shape) << 7
    return bits.astype(np.uint16)


def test_bf16_denormals_count_as_zero() -> None:
    for m in (1, 2, 5, 17, 40):
        for low, high in (((58, 68), (58, 68)), ((0, 3), (120, 132)), ((20, 80), (20, 80)), ((0, 66), (0, 66))):
            a, b = tiny(m, 70, seed=m, exponents=low), tiny(70, 36, seed=m + 1, exponents=high)
            expected = in_order(a, b, "bfloat16")
            for how in ("nz", "nk"):
                out = np.full((m, 36), 7, np.float32)
                run(prepare(a, lay_out(b, how), out, "bfloat16", out_dtype="float32"))
                assert np.array_equal(out.view(np.uint32), expected.view(np.uint32)), (m, low, high, how)
    # ... in the product only: the addend keeps its own, and so does the thread afterwards
    a, b = np.zeros((2, 64), np.uint16), np.zeros((64, 20), np.uint16)
    addend, out = np.full((2, 20), 1e-40, np.float32), np.zeros((2, 20), np.float32)
    run(
        prepare(
            a, lay_out(b, "nz"), out, "bfloat16", out_dtype="float32", addend=addend, addend_dtype="float32", beta=1.0
        )
    )
    assert np.array_equal(out, addend) and (np.float32([1e-40]) * np.float32(0.5) > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_with_broadcast_and_many_threads(dtype: str) -> None:
    for batch, m, n, k in (((3, 4), 5, 18, 20), ((2,), 70, 130, 300), ((40,), 1, 64, 65), ((0,), 2, 2, 2)):
        a = data(dtype, *batch, m, k)
        b = np.broadcast_to(data(dtype, *batch[-1:], k, n, seed=1), (*batch, k, n))
        out = np.zeros((*batch, m, n), a.dtype)
        run(prepare(a, Weight(b), out, dtype))
        exact = widen(a, dtype).astype(np.float64) @ widen(b, dtype).astype(np.float64)
        check(out, dtype, exact, np.abs(widen(a, dtype)).astype(np.float64) @ np.abs(widen(b, dtype)), k)


def test_empty_and_no_inner_dimension() -> None:
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 20), np.float32)
    assert np.array_equal(product(a, Weight(b), 20, "float32"), np.zeros((3, 20)))
    bias = data("float32", 3, 20)
    got = product(a, Weight(b), 20, "float32", addend=bias, beta=2.0)
    assert np.array_equal(got, 2 * bias)
    assert product(np.zeros((0, 5), np.float32), Weight(np.zeros((5, 4), np.float32)), 4, "float32").shape == (0, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype: str) -> None:
    a, b = np.zeros((7, 40), np.float32), np.zeros((40, 20), np.float32)
    a[0, 3], b[3, 1] = np.inf, 2  # inf * 2 = inf in (0, 1), inf * 0 = nan elsewhere in row 0
    a[1, 5], b[5, 2] = 3, -np.inf
    a[2, 7] = np.nan
    a[3, 9], b[9, 4] = 60000, 60000  # past the range of fp16
    a[4, 1], b[1, 6] = 2.0**-20, 2.0**-4  # a subnormal fp16
    round_all = _bf16 if dtype == "bfloat16" else lambda values: round_to(values, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        got = widen(product(round_all(a), lay_out(round_all(b), "nz"), 20, dtype), dtype)
        square = widen(round_all(np.float32([60000])), dtype) ** 2
        assert got[3, 4] == widen(round_to(square, dtype), dtype)[0]
    assert (got[3, 4] == np.inf) == (dtype == "float16")
    assert got[0, 1] == np.inf and np.isnan(got[0, 0]) and got[1, 2] == -np.inf and np.isnan(got[2]).all()
    assert got[4, 6] == 2.0**-24


def _bf16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16) | np.isnan(values).astype(np.uint16) * 0x40


@pytest.mark.skipif("ALOFT_ISA" in os.environ, reason="already run for one instruction set")
def test_every_instruction_set_passes_and_agrees(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from test_matmul import DTYPES, LAYOUTS, data, lay_out, product
results = dict()
for dtype in DTYPES:
    for m, n, k in ((1, 100, 300), (2, 64, 576), (4, 65, 63), (6, 50, 77), (13, 96, 300), (31, 40, 64), (70, 33, 520)):
        for how in LAYOUTS:
            name = f"{{dtype}}-{{m}}-{{n}}-{{k}}-{{how}}"
            results[name] = product(data(dtype, m, k), lay_out(data(dtype, k, n), how), n, dtype)
np.savez(sys.argv[1], **results)
"""
    results = {}
    for isa in ("portable", "avx2", "avx512", "amx"):
        environment = {**os.environ, "ALOFT_ISA": isa}
        suite = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
        suite.append(str(Path(__file__).with_name("test_matmul_fused.py")))
        done = subprocess.run(suite, env=environment, capture_output=True, text=True, timeout=300)
        if isa != "portable" and "is not available on this processor" in done.stdout + done.stderr:
            continue
        assert done.returncode == 0, done.stdout[-3000:]
        target = tmp_path / f"{isa}.npz"
        subprocess.run([sys.executable, "-c", script, str(target)], env=environment, check=True, timeout=120)
        results[isa] = np.load(target)
    reference = results["portable"]
    for other in results.values():
        for name in reference.files:
            if name.startswith("float32") and other is not reference:
                np.testing.assert_allclose(other[name], reference[name], rtol=2e-5, atol=2e-5)
            else:
                assert np.array_equal(other[name], reference[name]), name
    fused = [results[isa] for isa in results if isa != "portable"]
    for other in fused[1:]:
        assert all(np.array_equal(other[name], fused[0][name]) for name in reference.files)
