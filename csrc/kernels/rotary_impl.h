// The rotary kernel, compiled once for each instruction set.
#pragma once
#include "kernels/rotary.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

// Pairs i .. i + n (n <= 8) of a row as lanes. `half` is the number of pairs of the row.
template <Pairs kPairs, class T>
ALOFT_INLINE void load_pairs(const T* p, int64_t i, int64_t n, int64_t half, f32x8* a, f32x8* b) {
  if (kPairs == Pairs::Adjacent) {
    if (n == kLanes) {
      const f32x8 u = load(p + 2 * i), v = load(p + 2 * i + kLanes);
      *a = __builtin_shufflevector(u, v, 0, 2, 4, 6, 8, 10, 12, 14);
      *b = __builtin_shufflevector(u, v, 1, 3, 5, 7, 9, 11, 13, 15);
    } else {
      for (int64_t k = 0; k < n; ++k) {
        (*a)[k] = to_float(p[2 * (i + k)]);
        (*b)[k] = to_float(p[2 * (i + k) + 1]);
      }
    }
  } else {
    const T* q = kPairs == Pairs::Shared ? p : p + half;
    *a = n == kLanes ? load(p + i) : load_tail(p + i, n);
    *b = kPairs == Pairs::Shared ? *a : n == kLanes ? load(q + i) : load_tail(q + i, n);
  }
}

template <Pairs kPairs, class T>
ALOFT_INLINE void store_pairs(T* p, int64_t i, int64_t n, int64_t half, f32x8 a, f32x8 b) {
  if (kPairs == Pairs::Adjacent) {
    if (n == kLanes) {
      store(p + 2 * i, __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
      store(p + 2 * i + kLanes, __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
    } else {
      for (int64_t k = 0; k < n; ++k) {
        p[2 * (i + k)] = from_float<T>(a[k]);
        p[2 * (i + k) + 1] = from_float<T>(b[k]);
      }
    }
  } else if (n == kLanes) {
    store(p + i, a);
    store(p + half + i, b);
  } else {
    store_tail(p + i, a, n);
    store_tail(p + half + i, b, n);
  }
}

template <class T, class C, Pairs kIn, Pairs kOut, Pairs kTable>
void rotary_row(const void* x_, const void* cos_, const void* sin_, void* y_, int64_t width, int64_t tail) {
  const T* x = static_cast<const T*>(x_);
  const C *cos = static_cast<const C*>(cos_), *sin = static_cast<const C*>(sin_);
  T* y = static_cast<T*>(y_);
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    f32x8 a = splat(0), b = a, ca = a, cb = a, sa = a, sb = a;
    load_pairs<kIn>(x, i, n, half, &a, &b);
    load_pairs<kTable>(cos, i, n, half, &ca, &cb);
    load_pairs<kTable>(sin, i, n, half, &sa, &sb);
    store_pairs<kOut>(y, i, n, half, a * ca - b * sa, b * cb + a * sb);
  }
  if (tail && x != y) std::memcpy(y + width, x + width, static_cast<size_t>(tail) * sizeof(T));
}

using RotaryRow = void (*)(const void*, const void*, const void*, void*, int64_t, int64_t);

template <class T, class C>
RotaryRow rotary_row_for(Pairs input, Pairs output, Pairs table) {
  if (input == Pairs::Halves) {
    return table == Pairs::Shared ? rotary_row<T, C, Pairs::Halves, Pairs::Halves, Pairs::Shared>
                                  : rotary_row<T, C, Pairs::Halves, Pairs::Halves, Pairs::Halves>;
  }
  if (output == Pairs::Halves) return rotary_row<T, C, Pairs::Adjacent, Pairs::Halves, Pairs::Halves>;
  return table == Pairs::Shared ? rotary_row<T, C, Pairs::Adjacent, Pairs::Adjacent, Pairs::Shared>
                                : rotary_row<T, C, Pairs::Adjacent, Pairs::Adjacent, Pairs::Adjacent>;
}

RotaryRow find_rotary_row(const RotaryArgs& a) {
  const bool wide = a.table_dtype == DType::F32;
  switch (a.dtype) {
    case DType::BF16:
      return wide ? rotary_row_for<bf16, float>(a.input, a.output, a.table)
                  : rotary_row_for<bf16, bf16>(a.input, a.output, a.table);
    case DType::F16:
      return wide ? rotary_row_for<f16, float>(a.input, a.output, a.table)
                  : rotary_row_for<f16, f16>(a.input, a.output, a.table);
    default:
      return rotary_row_for<float, float>(a.input, a.output, a.table);
  }
}

}  // namespace

RotaryRow find_rotary_row_avx2(const RotaryArgs& args);
RotaryRow find_rotary_row_avx512(const RotaryArgs& args);  // null: has none

}  // namespace aloft
