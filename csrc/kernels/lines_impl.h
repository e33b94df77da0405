// Vector sweeps over a dense line of fp32, fp16 or bf16, compiled once for each instruction set (lines.cpp,
// lines_avx2.cpp). They find places; what is done there is the business of ordering.cpp.
#pragma once
#include "kernels/lines.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

ALOFT_INLINE bool any_lane(i32x8 mask) {
#if defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#else
  int32_t all = 0;
  for (int l = 0; l < kLanes; ++l) all |= mask[l];
  return all != 0;
#endif
}

// The first greatest element (kGreatest) or least one; the first NaN if there is one. n >= 1.
template <class T, bool kGreatest>
int64_t first_extreme_of(const T* x, int64_t n) {
  constexpr int kWays = 4;
  const float worst = kGreatest ? -INFINITY : INFINITY;
  f32x8 best[kWays] = {splat(worst), splat(worst), splat(worst), splat(worst)};
  i32x8 nan[kWays] = {};
  int64_t i = 0;
  for (; i + kWays * kLanes <= n; i += kWays * kLanes) {
    for (int w = 0; w < kWays; ++w) {
      const f32x8 v = load(x + i + w * kLanes);
      best[w] = kGreatest ? vmax(v, best[w]) : vmin(v, best[w]);
      nan[w] |= v != v;
    }
  }
  float top = worst;
  bool unordered = false;
  for (int w = 0; w < kWays; ++w) {
    unordered |= any_lane(nan[w]);
    for (int l = 0; l < kLanes; ++l) top = (kGreatest ? best[w][l] > top : best[w][l] < top) ? best[w][l] : top;
  }
  for (int64_t j = i; j < n; ++j) {
    const float v = to_float(x[j]);
    unordered |= v != v;
    top = (kGreatest ? v > top : v < top) ? v : top;
  }
  const f32x8 wanted = splat(top);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const f32x8 v = load(x + i);
    if (any_lane(unordered ? v != v : v == wanted)) break;
  }
  for (; i < n; ++i) {
    const float v = to_float(x[i]);
    if (unordered ? v != v : v == top) return i;
  }
  return 0;
}

template <class T>
int64_t first_extreme(const void* line, int64_t n, bool greatest) {
  const T* x = static_cast<const T*>(line);
  return greatest ? first_extreme_of<T, true>(x, n) : first_extreme_of<T, false>(x, n);
}

// From i on, the start of the first block of eight in which something may come before `bound` in descending
// (or ascending) order, or of the tail. NaN comes first in descending order.
template <class T>
int64_t skip_worse(const void* line, int64_t i, int64_t n, float bound, bool descending) {
  const T* x = static_cast<const T*>(line);
  const f32x8 b = splat(bound);
  if (descending) {
    while (i + kLanes <= n && !any_lane(~(load(x + i) <= b))) i += kLanes;
  } else {
    while (i + kLanes <= n && !any_lane(load(x + i) < b)) i += kLanes;
  }
  return i;
}

}  // namespace
}  // namespace aloft
