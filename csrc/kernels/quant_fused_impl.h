// Compiled once for each instruction set.
#pragma once
#include <cmath>

#include "kernels/quant_fused.h"
#include "kernels/quantize_impl.h"

namespace aloft {
namespace {

template <class T>
ALOFT_INLINE void store_part(T* p, f32x8 v, int64_t n) {
  n == kLanes ? store(p, v) : store_tail(p, v, n);
}

ALOFT_INLINE int64_t lanes_left(int64_t i, int64_t n) { return n - i < kLanes ? n - i : kLanes; }

void finish_quant(const RowQuant& q, int64_t r, int64_t cols, float* row, float* spare) {
  if (!q.y) return;
  void* y = static_cast<char*>(q.y) + r * quant_row_bytes(q.out, cols);
  if (!q.dynamic) return row_static(row, cols, q.scale, q.zero, q.step, q.divide, q.out, y);
  const float* from = row;
  if (q.scale) {
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_left(i, cols);
      const f32x8 s = q.step ? load_some(q.scale + i, n) : splat(*q.scale);
      store_part(spare + i, load_some(row + i, n) * s, n);
    }
    from = spare;
  }
  q.scales[r] = row_dynamic(from, cols, q.out, y);
}

template <class T>
void norm_quant_typed(const NormQuantArgs& a, int64_t begin, int64_t end, float* row) {
  float* spare = row + a.cols;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.cols;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + r * a.cols : nullptr;
    T* out = a.sum ? static_cast<T*>(a.sum) + r * a.cols : nullptr;
    f32x8 total = splat(0);
    for (int64_t i = 0; i < a.cols; i += kLanes) {
      const int64_t n = lanes_left(i, a.cols);
      f32x8 v = load_some(x + i, n);
      if (residual) v = v + load_some(residual + i, n);
      if (out) store_part(out + i, v, n);
      if (a.half_steps) v = rounded(x, v);
      store_part(row + i, v, n);
      total = total + v * v;
    }
    const float rstd = 1.0f / std::sqrt(sum(total) / static_cast<float>(a.cols) + a.epsilon);
    if (a.rstd) a.rstd[r] = rstd;
    for (int64_t i = 0; i < a.cols; i += kLanes) {
      const int64_t n = lanes_left(i, a.cols);
      f32x8 v = load_some(row + i, n) * splat(rstd);
      if (a.half_steps) v = rounded(x, v);
      v = v * load_some(a.gamma + i, n);
      if (a.half_steps) v = rounded(x, v);
      if (a.beta) v = v + load_some(a.beta + i, n);
      store_part(row + i, v, n);
    }
    for (const RowQuant& q : a.out) finish_quant(q, r, a.cols, row, spare);
  }
}

void norm_quant_rows(const NormQuantArgs& a, int64_t begin, int64_t end, float* row) {
  switch (a.dtype) {
    case DType::BF16:
      return norm_quant_typed<bf16>(a, begin, end, row);
    case DType::F16:
      return norm_quant_typed<f16>(a, begin, end, row);
    default:
      return norm_quant_typed<float>(a, begin, end, row);
  }
}

template <class T>
void widen_input(const void* x, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t c = lanes_left(i, n);
    store_part(to + i, load_some(static_cast<const T*>(x) + i, c), c);
  }
}

// row: 2 cols of input, then cols of result, then cols to spare.
void gated_quant_rows(const GatedQuantArgs& a, int64_t begin, int64_t end, float* row) {
  const int64_t wide = 2 * a.cols;
  float *result = row + wide, *spare = result + a.cols;
  int64_t group = 0;
  for (int64_t r = begin; r < end; ++r) {
    while (a.group_end && group < a.groups && r >= a.group_end[group]) ++group;
    if (group >= a.groups) return;
    switch (a.dtype) {
      case DType::BF16:
        widen_input<bf16>(static_cast<const bf16*>(a.x) + r * wide, wide, row);
        break;
      case DType::F16:
        widen_input<f16>(static_cast<const f16*>(a.x) + r * wide, wide, row);
        break;
      case DType::I32: {
        const int32_t* x = static_cast<const int32_t*>(a.x) + r * wide;
        const float* scale = a.weight_scale + group * wide;
        const float by_row = a.row_scale ? a.row_scale[r] : 1.f;
        for (int64_t i = 0; i < wide; ++i) {
          const int32_t v =
              a.bias ? static_cast<int32_t>(static_cast<uint32_t>(x[i]) + static_cast<uint32_t>(a.bias[i])) : x[i];
          row[i] = static_cast<float>(v) * scale[i] * by_row;
        }
        break;
      }
      default:
        widen_input<float>(static_cast<const float*>(a.x) + r * wide, wide, row);
    }
    if (a.interleaved) {  // even elements to the left half
      float* sorted = result;
      for (int64_t i = 0; i < a.cols; ++i) sorted[i] = row[2 * i], sorted[a.cols + i] = row[2 * i + 1];
      std::memcpy(row, sorted, static_cast<size_t>(wide) * sizeof(float));
    }
    const float *act = a.right ? row + a.cols : row, *gate = a.right ? row : row + a.cols;
    for (int64_t i = 0; i < a.cols; i += kLanes) {
      const int64_t n = lanes_left(i, a.cols);
      f32x8 v = load_some(act + i, n), g = load_some(gate + i, n);
      if (a.clipped) {
        v = select(v > splat(a.limit), splat(a.limit), v);
        g = select(g > splat(a.limit), splat(a.limit), g);
        g = select(g < splat(-a.limit), splat(-a.limit), g) + splat(a.glu_bias);
      }
      store_part(result + i, v * vsigmoid(v * splat(a.alpha)) * g, n);
    }
    RowQuant q = a.out;
    if (q.scale) q.scale += group * a.scale_group;
    if (q.zero) q.zero += group * a.scale_group;
    finish_quant(q, r, a.cols, result, spare);
  }
}

}  // namespace

struct FusedQuantKernels {
  void (*norm)(const NormQuantArgs&, int64_t, int64_t, float*);
  void (*gated)(const GatedQuantArgs&, int64_t, int64_t, float*);
};
extern const FusedQuantKernels kFusedQuantAvx2;

}  // namespace aloft
