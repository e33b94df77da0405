// The quantisers, compiled once for each instruction set (without contraction of a * b + c: see quantize.h).
#pragma once
#include "kernels/quantize.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

ALOFT_INLINE f32x8 vabs(f32x8 v) { return (f32x8)((u32x8)v & 0x7fffffff); }
ALOFT_INLINE f32x8 vrint(f32x8 v) {
#if defined(__AVX2__)
  return (f32x8)_mm256_round_ps((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const f32x8 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x8 rounded = (v + magic) - magic;
  return select(vabs(v) < splat(4194304.0f), rounded, v);
#endif
}

ALOFT_INLINE i32x8 to_int(f32x8 v) {
#if defined(__AVX2__)
  return (i32x8)_mm256_cvtps_epi32((__m256)v);
#else
  return __builtin_convertvector(v, i32x8);
#endif
}

struct Range {
  float low, high;
};
constexpr Range range_of(QuantOut out) {
  return out == QuantOut::I8   ? Range{-128.f, 127.f}
         : out == QuantOut::U8 ? Range{0.f, 255.f}
         : out == QuantOut::I4 ? Range{-8.f, 7.f}
                               : Range{-2147483648.f, 2147483520.f};
}

// Saturates and stores n <= 8 rounded values, the first being element i of the row.
template <QuantOut kOut>
ALOFT_INLINE void put(void* row, int64_t i, f32x8 v, int64_t n) {
  constexpr Range r = range_of(kOut);
  const f32x8 clamped = vmin(vmax(vrint(v), splat(r.low)), splat(r.high));
  const i32x8 q = to_int(clamped);
  if (kOut == QuantOut::I32) {
    std::memcpy(static_cast<int32_t*>(row) + i, &q, static_cast<size_t>(n) * 4);
  } else if (kOut == QuantOut::I4) {  // rows are multiples of eight values
    uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= (static_cast<uint32_t>(q[j]) & 15) << (4 * j);
    std::memcpy(static_cast<uint8_t*>(row) + i / 2, &word, 4);
  } else {
#if defined(__AVX2__)
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)q), _mm256_extracti128_si256((__m256i)q, 1));
    const __m128i bytes = kOut == QuantOut::I8 ? _mm_packs_epi16(words, words) : _mm_packus_epi16(words, words);
    std::memcpy(static_cast<uint8_t*>(row) + i, &bytes, static_cast<size_t>(n));
#else
    uint8_t bytes[8];
    for (int j = 0; j < 8; ++j) bytes[j] = static_cast<uint8_t>(q[j]);
    std::memcpy(static_cast<uint8_t*>(row) + i, bytes, static_cast<size_t>(n));
#endif
  }
}

template <class T>
ALOFT_INLINE f32x8 load_some(const T* p, int64_t n) {
  return n == kLanes ? load(p) : load_tail(p, n);
}

template <class T, QuantOut kOut>
void static_row(const T* x, int64_t cols, const float* scale, const float* offset, int64_t step, bool divide, void* y) {
  auto one = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    const f32x8 v = load_some(x + i, n);
    const f32x8 s = step ? load_some(scale + i, n) : splat(*scale);
    const f32x8 zero = !offset ? splat(0) : step ? load_some(offset + i, n) : splat(*offset);
    put<kOut>(y, i, (divide ? v / s : v * s) + zero, n);
  };
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) one(i, kLanes);
  if (i < cols) one(i, cols - i);
}

template <class T, QuantOut kOut>
void static_rows(const StaticQuantArgs& a, int64_t begin, int64_t end) {
  const int64_t bytes = quant_row_bytes(kOut, a.cols);
  for (int64_t r = begin; r < end; ++r) {
    const int64_t shift = r % a.channels * a.row_step;
    static_row<T, kOut>(static_cast<const T*>(a.x) + r * a.cols, a.cols, a.scale + shift,
                        a.offset ? a.offset + shift : nullptr, a.col_step, a.divide,
                        static_cast<char*>(a.y) + r * bytes);
  }
}

// max |v| of a row, v = x * smooth (kept in `row` when there is a smooth scale).
template <class T>
float largest(const T* x, const float* smooth, int64_t cols, float* row) {
  f32x8 m0 = splat(0), m1 = splat(0);
  int64_t i = 0;
  if (!smooth) {
    for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
      m0 = vmax(vabs(load(x + i)), m0);
      m1 = vmax(vabs(load(x + i + kLanes)), m1);
    }
  }
  for (; i < cols; i += kLanes) {
    const int64_t n = cols - i < kLanes ? cols - i : kLanes;
    f32x8 v = load_some(x + i, n);
    if (smooth) {
      v = v * load_some(smooth + i, n);
      n == kLanes ? store(row + i, v) : store_tail(row + i, v, n);
    }
    m0 = vmax(vabs(v), m0);
  }
  m0 = vmax(m0, m1);
  float m = 0;
  for (int j = 0; j < kLanes; ++j) m = m0[j] > m ? m0[j] : m;
  return m;
}

// Multiplies by L / m and stores; returns m / L.
template <class T, QuantOut kOut>
float scale_and_put(const T* x, int64_t cols, float m, void* y) {
  constexpr float limit = range_of(kOut).high;
  const float factor = m > 0 ? limit / m : 0.f;
  // m so small that the factor overflows: divide instead, as the factor's exact value would do.
  const bool tiny = factor > 3.4028234e38f;
  const f32x8 f = splat(tiny ? m / limit : factor);
  auto one = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    const f32x8 v = load_some(x + i, n);
    put<kOut>(y, i, tiny ? v / f : v * f, n);
  };
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) one(i, kLanes);
  if (i < cols) one(i, cols - i);
  return m / limit;
}

template <class T, QuantOut kOut>
void asymmetric_row(const T* x, const float* smooth, int64_t cols, float* row, void* y, float* scale, float* offset) {
  constexpr Range r = range_of(kOut);
  f32x8 low = splat(__builtin_inff()), high = splat(-__builtin_inff());
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int64_t n = cols - i < kLanes ? cols - i : kLanes;
    f32x8 v = load_some(x + i, n);
    if (smooth) v = v * load_some(smooth + i, n);
    n == kLanes ? store(row + i, v) : store_tail(row + i, v, n);
    if (n < kLanes) {  // the lanes beyond repeat the first
      for (int64_t j = n; j < kLanes; ++j) v[j] = v[0];
    }
    low = vmin(v, low), high = vmax(v, high);
  }
  float lowest = low[0], highest = high[0];
  for (int j = 1; j < kLanes; ++j) {
    lowest = low[j] < lowest ? low[j] : lowest;
    highest = high[j] > highest ? high[j] : highest;
  }
  const float wide = (highest - lowest) / (r.high - r.low);
  const float s = wide > 1e-12f ? wide : 1e-12f;
  const float zero = r.high - highest / s;
  *scale = s, *offset = zero;
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int64_t n = cols - i < kLanes ? cols - i : kLanes;
    put<kOut>(y, i, load_some(row + i, n) / splat(s) + splat(zero), n);
  }
}

template <class T, QuantOut kOut>
void dynamic_rows(const DynamicQuantArgs& a, int64_t begin, int64_t end, float* row) {
  const int64_t bytes = quant_row_bytes(kOut, a.cols);
  int64_t group = 0;
  for (int64_t r = begin; r < end; ++r) {
    while (a.group_end && group + 1 < a.groups && r >= a.group_end[group]) ++group;
    const T* x = static_cast<const T*>(a.x) + r * a.cols;
    const float* smooth = a.smooth ? a.smooth + group * a.cols : nullptr;
    void* y = static_cast<char*>(a.y) + r * bytes;
    if (a.offset) {
      asymmetric_row<T, kOut>(x, smooth, a.cols, row, y, a.scale + r, a.offset + r);
      continue;
    }
    const float m = largest(x, smooth, a.cols, row);
    a.scale[r] = smooth ? scale_and_put<float, kOut>(row, a.cols, m, y) : scale_and_put<T, kOut>(x, a.cols, m, y);
  }
}

template <QuantOut kOut>
void static_any(const StaticQuantArgs& a, int64_t begin, int64_t end) {
  switch (a.dtype) {
    case DType::BF16:
      return static_rows<bf16, kOut>(a, begin, end);
    case DType::F16:
      return static_rows<f16, kOut>(a, begin, end);
    default:
      return static_rows<float, kOut>(a, begin, end);
  }
}
void static_rows_any(const StaticQuantArgs& a, int64_t begin, int64_t end) {
  switch (a.out) {
    case QuantOut::U8:
      return static_any<QuantOut::U8>(a, begin, end);
    case QuantOut::I32:
      return static_any<QuantOut::I32>(a, begin, end);
    case QuantOut::I4:
      return static_any<QuantOut::I4>(a, begin, end);
    default:
      return static_any<QuantOut::I8>(a, begin, end);
  }
}

template <QuantOut kOut>
void dynamic_any(const DynamicQuantArgs& a, int64_t begin, int64_t end, float* row) {
  switch (a.dtype) {
    case DType::BF16:
      return dynamic_rows<bf16, kOut>(a, begin, end, row);
    case DType::F16:
      return dynamic_rows<f16, kOut>(a, begin, end, row);
    default:
      return dynamic_rows<float, kOut>(a, begin, end, row);
  }
}
void dynamic_rows_any(const DynamicQuantArgs& a, int64_t begin, int64_t end, float* row) {
  a.out == QuantOut::I4 ? dynamic_any<QuantOut::I4>(a, begin, end, row) : dynamic_any<QuantOut::I8>(a, begin, end, row);
}

float row_dynamic(const float* row, int64_t cols, QuantOut out, void* y) {
  const float m = largest<float>(row, nullptr, cols, nullptr);
  return out == QuantOut::I4 ? scale_and_put<float, QuantOut::I4>(row, cols, m, y)
                             : scale_and_put<float, QuantOut::I8>(row, cols, m, y);
}
void row_static(const float* row, int64_t cols, const float* scale, const float* offset, int64_t step, bool divide,
                QuantOut out, void* y) {
  out == QuantOut::I4 ? static_row<float, QuantOut::I4>(row, cols, scale, offset, step, divide, y)
                      : static_row<float, QuantOut::I8>(row, cols, scale, offset, step, divide, y);
}

}  // namespace

struct QuantizeKernels {
  void (*fixed)(const StaticQuantArgs&, int64_t begin, int64_t end);
  void (*dynamic)(const DynamicQuantArgs&, int64_t begin, int64_t end, float* row);
  float (*row_dynamic)(const float*, int64_t, QuantOut, void*);
  void (*row_static)(const float*, int64_t, const float*, const float*, int64_t, bool, QuantOut, void*);
};
extern const QuantizeKernels kQuantizeKernelsAvx2;
QuantizeKernels quantize_kernels_avx512();
#define ALOFT_QUANTIZE_KERNELS {static_rows_any, dynamic_rows_any, row_dynamic, row_static}

}  // namespace aloft
