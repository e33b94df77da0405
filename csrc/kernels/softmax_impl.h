// The softmax kernels, compiled once for each instruction set (softmax.cpp, softmax_avx2.cpp).
#pragma once
#include <cmath>

#include "kernels/softmax.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

// Sums are kept in fp32 lanes over a block, then in double: a vocabulary of 150,000 costs no accuracy.
constexpr int64_t kSumBlock = 2048;

template <class T>
ALOFT_INLINE f32x8 load_n(const T* p, int64_t n, float rest) {
  if (n >= kLanes) return load(p);
  f32x8 v = load_tail(p, n);
  for (int64_t i = n; i < kLanes; ++i) v[i] = rest;
  return v;
}
template <class T>
ALOFT_INLINE void store_n(T* p, f32x8 v, int64_t n) {
  n >= kLanes ? store(p, v) : store_tail(p, v, n);
}

// e^v for v <= 0: the one exponential the forward pass needs, without the cares of vexp about large v.
// Below -87.33 (the edge of normal numbers) it is 0; NaN stays NaN.
ALOFT_INLINE f32x8 exp_negative(f32x8 v) {
  const f32x8 clamped = vmax(splat(-87.33654f), v);  // NaN stays
  const f32x8 magic = splat(12582912.0f);            // 1.5 * 2^23: adding it rounds to an integer
  const f32x8 shifted = clamped * splat(1.44269504f) + magic;
  const f32x8 whole = shifted - magic;
  f32x8 r = clamped - whole * splat(0.693145752f);
  r = r - whole * splat(1.42860677e-6f);
  f32x8 p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const f32x8 power = (f32x8)(((i32x8)shifted - (i32x8)magic + 127) << 23);
  const i32x8 vanishes = v < splat(-87.33654f);
  return (f32x8)(~vanishes & (i32x8)(p * power));
}

template <class X>
float maximum(const X* x, int64_t n) {
  constexpr int kWays = 4;
  f32x8 top[kWays] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
  int64_t i = 0;
  for (; i + kWays * kLanes <= n; i += kWays * kLanes) {
    for (int w = 0; w < kWays; ++w) top[w] = vmax(load(x + i + w * kLanes), top[w]);
  }
  const f32x8 all = vmax(vmax(top[0], top[1]), vmax(top[2], top[3]));
  float most = -INFINITY;
  for (int l = 0; l < kLanes; ++l) most = all[l] > most ? all[l] : most;
  for (; i < n; ++i) {
    const float v = to_float(x[i]);
    most = v > most ? v : most;
  }
  return most;
}

// Σ exp(x - most) over a block; the exponentials go to e unless that is null.
template <class X>
float exp_block(const X* x, float* e, int64_t n, f32x8 most) {
  f32x8 part0 = splat(0), part1 = splat(0);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const f32x8 a = exp_negative(load(x + i) - most), b = exp_negative(load(x + i + kLanes) - most);
    if (e) store(e + i, a);
    if (e) store(e + i + kLanes, b);
    part0 += a;
    part1 += b;
  }
  for (; i < n; i += kLanes) {
    f32x8 a = exp_negative(load_n(x + i, n - i, 0) - most);
    if (e) store_n(e + i, a, n - i);
    for (int64_t l = n - i; l < kLanes; ++l) a[l] = 0;
    part0 += a;
  }
  return sum(part0 + part1);
}

template <class X, class Y>
void softmax_row(const X* x, Y* y, float* row, int64_t n, bool log) {
  const f32x8 most = splat(maximum(x, n));
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    total += exp_block(x + begin, log ? nullptr : row + begin, end - begin, most);
  }
  int64_t i = 0;
  if (log) {
    const f32x8 shift = splat(static_cast<float>(std::log(total)));
    for (; i + kLanes <= n; i += kLanes) store(y + i, load(x + i) - most - shift);
    if (i < n) store_tail(y + i, load_tail(x + i, n - i) - most - shift, n - i);
  } else {
    const f32x8 scale = splat(static_cast<float>(1.0 / total));
    for (; i + kLanes <= n; i += kLanes) store(y + i, load(row + i) * scale);
    if (i < n) store_tail(y + i, load_tail(row + i, n - i) * scale, n - i);
  }
}

template <class X, class Y>
void softmax_backward_row(const X* gradient, const X* output, Y* y, int64_t n, bool log) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    f32x8 part = splat(0);
    for (int64_t i = begin; i < end; i += kLanes) {
      const f32x8 g = load_n(gradient + i, end - i, 0);
      part += log ? g : g * load_n(output + i, end - i, 0);
    }
    total += sum(part);
  }
  const f32x8 t = splat(static_cast<float>(total));
  for (int64_t i = 0; i < n; i += kLanes) {
    const f32x8 g = load_n(gradient + i, n - i, 0), o = load_n(output + i, n - i, 0);
    store_n(y + i, log ? g - vexp(o) * t : (g - t) * o, n - i);
  }
}

template <class X, class Y>
void softmax_lines(const SoftmaxArgs& a, int64_t begin, int64_t end, float* scratch) {
  const X* x = static_cast<const X*>(a.x);
  const X* output = static_cast<const X*>(a.output);
  Y* y = static_cast<Y*>(a.y);
  if (a.inner == 1) {
    for (int64_t r = begin; r < end; ++r) {
      if (output) {
        softmax_backward_row(x + r * a.n, output + r * a.n, y + r * a.n, a.n, a.log);
      } else {
        softmax_row(x + r * a.n, y + r * a.n, scratch, a.n, a.log);
      }
    }
    return;
  }
  // Lines with a stride are gathered into dense fp32 ones: row, input, output.
  float *row = scratch, *in = scratch + a.n, *result = scratch + 2 * a.n;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t base = r / a.inner * a.n * a.inner + r % a.inner;
    for (int64_t i = 0; i < a.n; ++i) in[i] = to_float(x[base + i * a.inner]);
    if (output) {
      for (int64_t i = 0; i < a.n; ++i) row[i] = to_float(output[base + i * a.inner]);
      softmax_backward_row(in, row, result, a.n, a.log);
    } else {
      softmax_row(in, result, row, a.n, a.log);
    }
    for (int64_t i = 0; i < a.n; ++i) y[base + i * a.inner] = from_float<Y>(result[i]);
  }
}

void softmax_range(const SoftmaxArgs& a, int64_t begin, int64_t end, float* scratch) {
  const bool wide = a.y_dtype == DType::F32;
  switch (a.dtype) {
    case DType::BF16:
      return wide ? softmax_lines<bf16, float>(a, begin, end, scratch)
                  : softmax_lines<bf16, bf16>(a, begin, end, scratch);
    case DType::F16:
      return wide ? softmax_lines<f16, float>(a, begin, end, scratch) : softmax_lines<f16, f16>(a, begin, end, scratch);
    default:
      return softmax_lines<float, float>(a, begin, end, scratch);
  }
}

}  // namespace

using SoftmaxKernel = void (*)(const SoftmaxArgs&, int64_t begin, int64_t end, float* scratch);
extern const SoftmaxKernel kSoftmaxAvx2;

}  // namespace aloft
