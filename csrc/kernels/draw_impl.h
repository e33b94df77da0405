// The sweeps of random sampling, compiled once for each instruction set (draw.cpp, draw_avx2.cpp).
#pragma once
#include "kernels/softmax_impl.h"

namespace aloft {
namespace {

typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x4 __attribute__((vector_size(32)));

// Logits divided by the temperature, in fp32; returns NaN if there is one, else the maximum.
template <class T>
float divide_row(const T* x, float temperature, float* row, int64_t n) {
  const f32x8 by = splat(temperature);
  f32x8 top = splat(-INFINITY);
  i32x8 nan = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const f32x8 v = load(x + i) / by;
    store(row + i, v);
    top = vmax(v, top);
    nan |= v != v;
  }
  float most = -INFINITY;
  bool unordered = false;
  for (int l = 0; l < kLanes; ++l) {
    most = top[l] > most ? top[l] : most;
    unordered |= nan[l] != 0;
  }
  for (; i < n; ++i) {
    const float v = to_float(x[i]) / temperature;
    row[i] = v;
    most = v > most ? v : most;
    unordered |= v != v;
  }
  return unordered ? NAN : most;
}

float divide(const void* x, DType dtype, float temperature, float* row, int64_t n) {
  if (dtype == DType::BF16) return divide_row(static_cast<const bf16*>(x), temperature, row, n);
  if (dtype == DType::F16) return divide_row(static_cast<const f16*>(x), temperature, row, n);
  return divide_row(static_cast<const float*>(x), temperature, row, n);
}

// softmax_row but for its last step, the multiplication with the number returned.
float exponentials(float* row, int64_t n) {
  const f32x8 most = splat(maximum(row, n));
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    total += exp_block(row + begin, row + begin, end - begin, most);
  }
  return static_cast<float>(1.0 / total);
}

// The sum of w[i] * scale, each product rounded to fp32, in eight lanes of doubles.
float scaled_sum(const float* w, int64_t n, float scale) {
  const f32x8 s = splat(scale);
  f64x4 low = {}, high = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const f32x8 v = load(w + i) * s;
    f32x4 half[2];
    std::memcpy(half, &v, sizeof v);
    low += __builtin_convertvector(half[0], f64x4);
    high += __builtin_convertvector(half[1], f64x4);
  }
  low += high;
  double sum = (low[0] + low[2]) + (low[1] + low[3]);
  for (; i < n; ++i) {
    const float v = w[i] * scale;
    sum += static_cast<double>(v);
  }
  return static_cast<float>(sum);
}

void sums_of_pieces(const float* w, int64_t width, int64_t pieces, float scale, float* sums) {
  for (int64_t piece = 0; piece < pieces; ++piece) sums[piece] = scaled_sum(w + piece * width, width, scale);
}

}  // namespace

struct DrawKernels {
  float (*divide)(const void* x, DType dtype, float temperature, float* row, int64_t n);
  float (*exponentials)(float* row, int64_t n);
  void (*sums)(const float* w, int64_t width, int64_t pieces, float scale, float* sums);
};
extern const DrawKernels kDrawAvx2;

}  // namespace aloft
