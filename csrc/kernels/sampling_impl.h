// The sweeps of the top-k / top-p kernel, compiled once for each instruction set (sampling.cpp, sampling_avx2.cpp).
// Algorithms of the standard library stay out of here: the linker would merge what they instantiate.
#pragma once
#include "kernels/sampling.h"
#include "kernels/vec.h"

namespace aloft {

constexpr int kSamplingCuts = 3;

namespace {

ALOFT_INLINE bool any(i32x8 mask) {
#if defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#else
  int32_t all = 0;
  for (int l = 0; l < kLanes; ++l) all |= mask[l];
  return all != 0;
#endif
}

// A row in fp32; returns NaN if it holds one, else the maximum.
template <class T>
float widen_row(const void* from, float* row, int64_t n) {
  const T* x = static_cast<const T*>(from);
  f32x8 top = splat(-INFINITY);
  i32x8 nan = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const f32x8 v = load(x + i);
    store(row + i, v);
    top = vmax(v, top);
    nan |= v != v;
  }
  float most = -INFINITY;
  for (int l = 0; l < kLanes; ++l) most = top[l] > most ? top[l] : most;
  bool unordered = any(nan);
  for (; i < n; ++i) {
    const float v = to_float(x[i]);
    row[i] = v;
    most = v > most ? v : most;
    unordered |= v != v;
  }
  return unordered ? NAN : most;
}

float widen(const void* from, DType dtype, float* row, int64_t n) {
  if (dtype == DType::BF16) return widen_row<bf16>(from, row, n);
  if (dtype == DType::F16) return widen_row<f16>(from, row, n);
  return widen_row<float>(from, row, n);
}

template <class T>
void narrow_row(const float* row, void* to, int64_t n) {
  T* y = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, load(row + i));
  for (; i < n; ++i) y[i] = from_float<T>(row[i]);
}

void narrow(const float* row, void* to, DType dtype, int64_t n) {
  if (dtype == DType::BF16) return narrow_row<bf16>(row, to, n);
  if (dtype == DType::F16) return narrow_row<f16>(row, to, n);
  narrow_row<float>(row, to, n);
}

// From i on, the start of the first block of eight that holds a value above `bound` (or of the tail).
int64_t skip_to_above(const float* x, int64_t i, int64_t n, float bound) {
  const f32x8 b = splat(bound);
  while (i + kLanes <= n && !any(load(x + i) > b)) i += kLanes;
  return i;
}

void mask_below(float* row, int64_t n, float threshold) {
  const f32x8 t = splat(threshold), none = splat(-INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const f32x8 v = load(row + i);
    store(row + i, select(v < t, none, v));
  }
  for (; i < n; ++i) row[i] = row[i] < threshold ? -INFINITY : row[i];
}

// e[i] = exp(x[i] - most); returns their sum, and in below[c] the sum of those with x[i] < cuts[c].
double exps(const float* x, float* e, int64_t n, float most, const float* cuts, double* below) {
  constexpr int64_t kBlock = 2048;  // summed in fp32 lanes, then in double
  const f32x8 m = splat(most);
  const f32x8 cut[kSamplingCuts] = {splat(cuts[0]), splat(cuts[1]), splat(cuts[2])};
  double total = 0;
  for (int c = 0; c < kSamplingCuts; ++c) below[c] = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    f32x8 all = splat(0), part[kSamplingCuts] = {};
    for (int64_t i = begin; i < end; i += kLanes) {
      const int64_t left = end - i;
      const f32x8 v = left >= kLanes ? load(x + i) : load_tail(x + i, left);
      f32x8 p = vexp(v - m);
      if (left >= kLanes) {
        store(e + i, p);
      } else {
        store_tail(e + i, p, left);
        for (int64_t l = left; l < kLanes; ++l) p[l] = 0;
      }
      all += p;
      for (int c = 0; c < kSamplingCuts; ++c) part[c] += (f32x8)((i32x8)(v < cut[c]) & (i32x8)p);
    }
    total += sum(all);
    for (int c = 0; c < kSamplingCuts; ++c) below[c] += sum(part[c]);
  }
  return total;
}

}  // namespace

struct SamplingKernels {
  float (*widen)(const void* from, DType dtype, float* row, int64_t n);
  void (*narrow)(const float* row, void* to, DType dtype, int64_t n);
  int64_t (*skip_to_above)(const float* x, int64_t i, int64_t n, float bound);
  void (*mask_below)(float* row, int64_t n, float threshold);
  double (*exps)(const float* x, float* e, int64_t n, float most, const float* cuts, double* below);
};
extern const SamplingKernels kSamplingAvx2;

}  // namespace aloft
