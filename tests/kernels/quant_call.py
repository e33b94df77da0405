"""aloft::quant_matmul and aloft::widen_matmul of libaloft_kernels through ctypes, on numpy arrays."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_uint8, c_void_p
from dataclasses import dataclass

import numpy as np
from matmul_call import LIBRARY

DTYPES = {"float32": 0, "float16": 1, "int8": 2, "int32": 3, "int64": 9, "bfloat16": 27}
ROWS, COLS, PANELS, PANELS_ROWS = range(4)
LAYOUTS = {"rows": ROWS, "cols": COLS, "panels": PANELS, "panels rows": PANELS_ROWS}


class _Weight(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("bits", c_int), ("layout", c_uint8), ("stride", c_int64), ("line", c_int64))


class _QuantMatmul(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("m", "n", "k")),
        ("a", c_void_p),
        ("a_stride", c_int64),
        ("b", _Weight),
        ("group", c_int64),
        ("scale", c_void_p),
        ("scale_step", c_int64),
        *((name, c_void_p) for name in ("zero", "integer_bias", "row_scale", "bias", "out_offset")),
        ("out_offset_step", c_int64),
        ("out_dtype", c_int),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("scale_dtype", c_int),
    )


class _WidenMatmul(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("m", "n", "k")),
        ("a_dtype", c_int),
        ("a", c_void_p),
        ("a_stride", c_int64),
        ("b", _Weight),
        ("group", c_int64),
        ("scale", c_void_p),
        ("zero", c_void_p),
        ("scale_step", c_int64),
        ("bias", c_void_p),
        ("out_dtype", c_int),
        ("out_scale", c_void_p),
        ("out_offset", c_void_p),
        ("out_scale_step", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("scale_dtype", c_int),
    )


@dataclass
class Weight:
    """Integers [k, n] and the memory that holds them."""

    values: np.ndarray
    memory: np.ndarray
    struct: _Weight


def lay_out(values: np.ndarray, bits: int, layout: str, line: int = 32) -> Weight:
    """[k, n] integers as the kernels read them; padding holds junk where rows and columns end, zeros in panels."""
    along_k = layout in ("rows", "panels rows")
    lines = np.ascontiguousarray(values.T if along_k else values)  # [lines, values of a line]
    count, width = lines.shape
    per = 8 // bits
    packed = np.zeros((count, -(-width // per)), np.uint8)
    for i in range(per):
        part = (lines[:, i::per] & (0xFF if bits == 8 else 15)).astype(np.uint8)
        packed[:, : part.shape[1]] |= part << np.uint8(4 * i)
    if layout in ("rows", "cols"):
        memory = np.full((count, packed.shape[1] + 5), 0x5A, np.uint8)
        memory[:, : packed.shape[1]] = packed
        stride = memory.shape[1]
    else:
        stride, panels = -(-count // 16) * 16, -(-packed.shape[1] // line)
        memory = np.zeros((panels, stride, line), np.uint8)
        for p in range(panels):
            part = packed[:, p * line : (p + 1) * line]
            memory[p, :count, : part.shape[1]] = part
    struct = _Weight(memory.ctypes.data, bits, LAYOUTS[layout], stride, line)
    return Weight(values, memory, struct)


def _pointer(array: np.ndarray | None, dtype: type) -> tuple[int | None, np.ndarray | None]:
    if array is None:
        return None, None
    kept = np.ascontiguousarray(array, dtype)
    return kept.ctypes.data, kept


def quant_matmul(
    a: np.ndarray,
    weight: Weight,
    out_dtype: str,
    *,
    scale: np.ndarray | None = None,
    group: int = 0,
    zero: np.ndarray | None = None,
    integer_bias: np.ndarray | None = None,
    row_scale: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    out_offset: np.ndarray | None = None,
    gated: bool = False,
    packed_scale: bool = False,
) -> np.ndarray:
    """The product; bfloat16 comes back as uint16. packed_scale: scales go as the low halves of int64."""
    m, k = a.shape
    n = weight.values.shape[1] // (2 if gated else 1)
    out = np.full((m, n), 0x5A, np.uint16 if out_dtype == "bfloat16" else np.dtype(out_dtype))
    a = np.ascontiguousarray(a, np.int8)
    columns = weight.values.shape[1]
    call = _QuantMatmul(m=m, n=columns, k=k, a=a.ctypes.data, a_stride=k, b=weight.struct, group=group)
    kept = [a, weight, out]
    for name, array, kind in (
        ("scale", scale, np.float32),
        ("zero", zero, np.float32),
        ("integer_bias", integer_bias, np.int32),
        ("row_scale", row_scale, np.float32),
        ("bias", bias, np.float32),
        ("out_offset", out_offset, np.int32),
    ):
        pointer, array = _pointer(array, kind)
        setattr(call, name, pointer)
        kept.append(array)
    if packed_scale:
        low = np.ascontiguousarray(scale, np.float32).view(np.uint32).astype(np.uint64)
        packed = low | np.uint64(1 << 46)
        kept.append(packed)
        call.scale, call.scale_dtype = packed.ctypes.data, DTYPES["int64"]
    call.scale_step = int(scale is None or scale.shape[-1] == columns)
    call.out_offset_step = int(out_offset is not None and out_offset.size > 1)
    call.out_dtype, call.out, call.out_stride = DTYPES[out_dtype], out.ctypes.data, n
    name = "18quant_matmul_gated" if gated else "12quant_matmul"
    getattr(LIBRARY, f"_ZN5aloft{name}ERKNS_11QuantMatmulE")(ctypes.byref(call))
    return out


def widen_matmul(
    a: np.ndarray,
    a_dtype: str,
    weight: Weight,
    out_dtype: str,
    scale: np.ndarray,
    *,
    group: int = 0,
    zero: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """a: stored values (bfloat16 as uint16)."""
    m, k = a.shape
    n = weight.values.shape[1]
    out = np.zeros((m, n), np.uint16 if out_dtype == "bfloat16" else np.dtype(out_dtype))
    a = np.ascontiguousarray(a)
    call = _WidenMatmul(
        m=m, n=n, k=k, a_dtype=DTYPES[a_dtype], a=a.ctypes.data, a_stride=k, b=weight.struct, group=group
    )
    kept = [a, out]
    for name, array in (("scale", scale), ("zero", zero), ("bias", bias)):
        pointer, array = _pointer(array, np.float32)
        setattr(call, name, pointer)
        kept.append(array)
    call.scale_step = int(scale.shape[-1] == n)
    call.out_dtype, call.out, call.out_stride = DTYPES[out_dtype], out.ctypes.data, n
    LIBRARY._ZN5aloft12widen_matmulERKNS_11WidenMatmulE(ctypes.byref(call))
    return out
