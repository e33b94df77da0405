"""Products with the operator that follows (csrc/kernels/matmul_fused.h): the same bits as one after the other."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from matmul_call import LIBRARY, lay_out, prepare
from test_matmul import DTYPES, LAYOUTS, data, product

SHAPES = ((1, 32, 64), (1, 192, 576), (2, 64, 96), (5, 96, 70), (9, 64, 130), (33, 64, 100), (40, 128, 256))
DTYPE_OF = {"float32": 0, "float16": 1, "bfloat16": 27}
SILU, GELU_TANH = 0, 2


class _Gated(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("act", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("clipped", ctypes.c_bool),
        ("alpha", ctypes.c_float),
        ("limit", ctypes.c_float),
        ("bias", ctypes.c_float),
        ("y", ctypes.c_void_p),
        ("activated", ctypes.c_void_p),
    )


def gated(both: np.ndarray, dtype: str, kind: int) -> np.ndarray:
    rows, cols = both.shape[0], both.shape[1] // 2
    y = np.zeros((rows, cols), both.dtype)
    address = both.ctypes.data
    arguments = _Gated(
        kind=kind, dtype=DTYPE_OF[dtype], rows=rows, cols=cols, act=address, gate=address + cols * both.itemsize
    )
    arguments.stride, arguments.step, arguments.alpha, arguments.y = 2 * cols, 1, 1.0, y.ctypes.data
    LIBRARY._ZN5aloft5gatedERKNS_9GatedArgsE(ctypes.byref(arguments))
    return y


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_product_is_the_product_then_the_gated_unit(dtype: str) -> None:
    for m, n, k in SHAPES:
        a, b = data(dtype, m, k), data(dtype, k, n, seed=1)
        for how in LAYOUTS:
            weight = lay_out(b, how)
            expected = {kind: gated(product(a, weight, n, dtype), dtype, kind) for kind in (SILU, GELU_TANH)}
            for kind, wanted in expected.items():
                wide = np.full((m, n // 2 + 8), 0x7F7F, np.uint16).astype(a.dtype)
                call = prepare(a, weight, wide[:, : n // 2], dtype)
                call.n = n
                LIBRARY._ZN5aloft12matmul_gatedERKNS_6MatmulENS_10ActivationE(ctypes.byref(call), kind)
                assert np.array_equal(wide[:, : n // 2], wanted), (m, n, k, how, kind)
                assert (wide[:, n // 2 :] == wide[0, -1]).all()
