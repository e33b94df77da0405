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

template <class X, class Y>
void softmax_row(const X* x, Y* y, float* row, int64_t n, bool log) {
  f32x8 top = splat(-INFINITY);
  for (int64_t i = 0; i < n; i += kLanes) {
    const f32x8 v = load_n(x + i, n - i, -INFINITY);
    top = vmax(v, top);
  }
  float m = top[0];
  for (int l = 1; l < kLanes; ++l) m = top[l] > m ? top[l] : m;
  const f32x8 most = splat(m);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    f32x8 part = splat(0);
    for (int64_t i = begin; i < end; i += kLanes) {
      f32x8 e = vexp(load_n(x + i, end - i, -INFINITY) - most);
      if (end - i < kLanes) {
        for (int64_t l = end - i; l < kLanes; ++l) e[l] = 0;
      }
      if (!log) store_n(row + i, e, end - i);
      part += e;
    }
    total += sum(part);
  }
  if (log) {
    const f32x8 shift = splat(static_cast<float>(std::log(total)));
    for (int64_t i = 0; i < n; i += kLanes) store_n(y + i, load_n(x + i, n - i, 0) - most - shift, n - i);
  } else {
    const f32x8 scale = splat(static_cast<float>(1.0 / total));
    for (int64_t i = 0; i < n; i += kLanes) store_n(y + i, load_n(row + i, n - i, 0) * scale, n - i);
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
