"""aloft::matmul of libaloft_kernels through ctypes, on numpy arrays (bf16 travels as uint16)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from aloft.runtime.choice import library_folder

LIBRARY = ctypes.CDLL(str(library_folder() / "libaloft_kernels.so"))
ELEMENTS = {"float32": 0, "float16": 1, "bfloat16": 2}
MAX_BATCH_DIMS = 6


class _Operand(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_uint8),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("layout", ctypes.c_uint8),
        ("padded_rows", ctypes.c_int64),
    )


class _Matmul(ctypes.Structure):
    _fields_ = (
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("batch_dims", ctypes.c_int),
        ("batch", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("a", _Operand),
        ("b", _Operand),
        ("out", _Operand),
        ("addend", _Operand),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
    )


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 -> storage array of `dtype`, round to nearest even; bfloat16 as uint16. Finite values."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Storage array -> float32, exactly."""
    if dtype != "bfloat16":
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Weight:
    """The right operand [k, n] with where and how it lies."""

    array: np.ndarray
    layout: int = 0
    padded_rows: int = 0


def fractal_nz(stored: np.ndarray) -> np.ndarray:
    """[R, C] -> [ceil(C/16), ceil(R/16) * 16, 16], padding zero (contract 1.4, written from its formula)."""
    rows, columns = stored.shape
    padded_rows, panels = -(-rows // 16) * 16, -(-columns // 16)
    flat = np.zeros(panels * padded_rows * 16, stored.dtype)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    flat[((c // 16) * padded_rows + r) * 16 + c % 16] = stored
    return flat.reshape(panels, padded_rows, 16)


def lay_out(stored: np.ndarray, how: str) -> Weight:
    """[k, n] storage array -> one of: kn, nk (transposed view), strided, nz (stored [k, n]), nz_t (stored [n, k])."""
    k, n = stored.shape
    match how:
        case "kn":
            return Weight(np.ascontiguousarray(stored))
        case "nk":
            return Weight(np.ascontiguousarray(stored.T).T)
        case "strided":
            wide = np.full((2 * k + 1, 3 * n + 2), 0x7F7F, np.uint16).astype(stored.dtype)
            wide[: 2 * k : 2, : 3 * n : 3] = stored
            return Weight(wide[: 2 * k : 2, : 3 * n : 3])
        case "nz":
            return Weight(fractal_nz(stored), 1, -(-k // 16) * 16)
        case "nz_t":
            return Weight(fractal_nz(np.ascontiguousarray(stored.T)), 2, -(-n // 16) * 16)
    raise ValueError(how)


def _operand(array: np.ndarray | None, dtype: str, weight: Weight | None = None) -> _Operand:
    operand = _Operand(type=ELEMENTS[dtype])
    if array is None:
        return operand
    operand.data = array.ctypes.data
    if weight and weight.layout:
        operand.layout, operand.padded_rows = weight.layout, weight.padded_rows
        return operand
    strides = [s // array.itemsize for s in array.strides]
    operand.row_stride, operand.col_stride = strides[-2:]
    for d, stride in enumerate(strides[:-2]):
        operand.batch_stride[d] = stride
    return operand


def prepare(
    a: np.ndarray,
    weight: Weight,
    out: np.ndarray,
    dtype: str,
    *,
    out_dtype: str | None = None,
    addend: np.ndarray | None = None,
    addend_dtype: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> _Matmul:
    """A call on existing arrays. Leading dimensions are the batch and must agree."""
    call = _Matmul(m=out.shape[-2], n=out.shape[-1], k=a.shape[-1], batch_dims=out.ndim - 2, alpha=alpha, beta=beta)
    for d, size in enumerate(out.shape[:-2]):
        call.batch[d] = size
    call.a = _operand(a, dtype)
    call.b = _operand(weight.array, dtype, weight)
    call.out = _operand(out, out_dtype or dtype)
    call.addend = _operand(addend, addend_dtype or dtype)
    call.kept_alive = (a, weight, out, addend)
    return call


def run(call: _Matmul) -> None:
    LIBRARY._ZN5aloft6matmulERKNS_6MatmulE(ctypes.byref(call))
