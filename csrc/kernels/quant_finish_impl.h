// From integer sums to results, compiled once for each instruction set (without contraction: see quant_matmul.h).
#pragma once
#include "kernels/quant_isa.h"
#include "kernels/quantize_impl.h"

namespace aloft::quant_detail {
namespace {

ALOFT_INLINE i32x8 load_ints(const int32_t* p, int64_t n) {
  i32x8 v{};
  std::memcpy(&v, p, static_cast<size_t>(n) * 4);
  return v;
}
ALOFT_INLINE f32x8 to_floats(i32x8 v) {
#if defined(__AVX2__)
  return (f32x8)_mm256_cvtepi32_ps((__m256i)v);
#else
  return __builtin_convertvector(v, f32x8);
#endif
}

// Calls one(j, n) for eight columns at a time; n is a constant 8 except for the last ones.
template <class F>
ALOFT_INLINE void each_eight(int64_t n, F&& one) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) one(j, int64_t{kLanes});
  if (j < n) one(j, n - j);
}

void combine_rows(const GroupSums& from, float* sums, int64_t width, int64_t rows, int64_t n, bool first) {
  for (int64_t g = 0; g < from.groups; ++g, first = false) {
    const float *scale = from.scale + g * from.scale_group,
                *zero = from.zero ? from.zero + g * from.zero_group : nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t* acc = from.acc + g * from.acc_group + r * width;
      float* to = sums + r * width;
      const float a_sum = static_cast<float>(from.a_sums[g * from.a_sums_group + r]);
      each_eight(n, [&](int64_t j, int64_t c) __attribute__((always_inline)) {
        f32x8 f = to_floats(load_ints(acc + j, c));
        if (zero) f = f - load_some(zero + j, c) * splat(a_sum);
        f = f * (from.step ? load_some(scale + j, c) : splat(*scale));
        if (!first) f = load_some(to + j, c) + f;
        c == kLanes ? store(to + j, f) : store_tail(to + j, f, c);
      });
    }
  }
}

template <class T>
ALOFT_INLINE void store_some(T* p, f32x8 v, int64_t n) {
  n == kLanes ? store(p, v) : store_tail(p, v, n);
}

void store_row(const QuantMatmul& q, int64_t row, int64_t n0, int64_t n, const int32_t* acc, const float* sums,
               const float* scale, DType type, void* to) {
  const int32_t* integers = q.integer_bias ? q.integer_bias + n0 : nullptr;
  if (type == DType::I32) {
    int32_t* out = static_cast<int32_t*>(to);
    for (int64_t j = 0; j < n; ++j) {
      out[j] = static_cast<int32_t>(static_cast<uint32_t>(acc[j]) + static_cast<uint32_t>(integers ? integers[j] : 0));
    }
    return;
  }
  const float* bias = q.bias ? q.bias + n0 : nullptr;
  const int32_t* offset = q.out_offset ? q.out_offset + (q.out_offset_step ? n0 : 0) : nullptr;
  each_eight(n, [&](int64_t j, int64_t c) __attribute__((always_inline)) {
    f32x8 f;
    if (sums) {
      f = load_some(sums + j, c);
    } else {
      i32x8 a = load_ints(acc + j, c);
      if (integers) a = (i32x8)((u32x8)a + (u32x8)load_ints(integers + j, c));
      f = to_floats(a);
      if (scale) f = f * (q.scale_step ? load_some(scale + j, c) : splat(*scale));
    }
    if (q.row_scale) f = f * splat(q.row_scale[row]);
    if (bias) f = f + load_some(bias + j, c);
    switch (type) {
      case DType::BF16:
        return store_some(static_cast<bf16*>(to) + j, f, c);
      case DType::F16:
        return store_some(static_cast<f16*>(to) + j, f, c);
      case DType::I8: {
        f = vrint(f);
        if (offset) f = f + to_floats(q.out_offset_step ? load_ints(offset + j, c) : i32x8{} + *offset);
        return put<QuantOut::I8>(to, j, f, c);
      }
      default:
        return store_some(static_cast<float*>(to) + j, f, c);
    }
  });
}

void store_rows(const QuantMatmul& q, int64_t row0, int64_t rows, int64_t n0, int64_t n, const int32_t* acc,
                const float* sums, int64_t width, const float* scale, const Target& to) {
  const bool four = to.dtype == DType::F32 || to.dtype == DType::I32;
  const int64_t row_bytes = to.stride * (four ? 4 : to.dtype == DType::I8 ? 1 : 2);
  for (int64_t r = 0; r < rows; ++r) {
    store_row(q, row0 + r, n0, n, acc + r * width, sums ? sums + r * width : nullptr, scale, to.dtype,
              static_cast<char*>(to.data) + r * row_bytes);
  }
}

template <class T>
void widen_row(const void* from, int64_t n, float* to) {
  const T* p = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t c = n - i < kLanes ? n - i : kLanes;
    store_some(to + i, load_some(p + i, c), c);
  }
}

void widen_any(DType type, const void* from, int64_t n, float* to) {
  switch (type) {
    case DType::BF16:
      return widen_row<bf16>(from, n, to);
    case DType::F16:
      return widen_row<f16>(from, n, to);
    case DType::I64:
      for (int64_t i = 0; i < n; ++i) std::memcpy(to + i, static_cast<const int64_t*>(from) + i, sizeof(float));
      return;
    default:
      return widen_row<float>(from, n, to);
  }
}

}  // namespace
}  // namespace aloft::quant_detail
