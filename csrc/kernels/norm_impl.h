// The normalisation kernels, compiled once for each instruction set (norm.cpp, norm_avx2.cpp).
#pragma once
#include <type_traits>

#include "kernels/norm.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

// v = x (+ residual) of one row into `row` (fp32, cols long), its sum into `out`; returns sum(v^2).
template <class T>
float gather_row(const T* x, const T* residual, T* out, float* row, int64_t cols) {
  f32x8 total0 = splat(0), total1 = splat(0);
  int64_t i = 0;
  if (!residual) {
    for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
      const f32x8 u = load(x + i), v = load(x + i + kLanes);
      total0 += u * u;
      total1 += v * v;
    }
    for (; i + kLanes <= cols; i += kLanes) {
      const f32x8 u = load(x + i);
      total0 += u * u;
    }
    if (i < cols) {
      const f32x8 u = load_tail(x + i, cols - i);
      total1 += u * u;
    }
    return sum(total0 + total1);
  }
  for (; i + kLanes <= cols; i += kLanes) {
    f32x8 v = load(x + i) + load(residual + i);
    if (sizeof(T) == 2 && out) store(out + i, v);
    if (std::is_same<T, f16>::value) v = rounded(x, v);
    if (sizeof(T) == 4 && out) store(out + i, v);
    store(row + i, v);
    total0 += v * v;
  }
  if (i < cols) {
    f32x8 v = load_tail(x + i, cols - i) + load_tail(residual + i, cols - i);
    if (out) store_tail(out + i, v, cols - i);
    if (std::is_same<T, f16>::value) v = rounded(x, v);
    store_tail(row + i, v, cols - i);
    total0 += v * v;
  }
  return sum(total0 + total1);
}

template <class T, class G, bool kTwice>
void scale_row(const T* x, const float* row, const G* gamma, float offset, float rstd, T* y, float* y_fp32,
               int64_t cols) {
  const f32x8 r = splat(rstd), o = splat(offset);
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    f32x8 v = (row ? load(row + i) : load(x + i)) * r;
    if (kTwice) v = rounded(x, v);
    if (gamma) v = v * (load(gamma + i) + o);
    store(y + i, v);
    if (y_fp32) store(y_fp32 + i, v);
  }
  if (i < cols) {
    const int64_t n = cols - i;
    f32x8 v = (row ? load_tail(row + i, n) : load_tail(x + i, n)) * r;
    if (kTwice) v = rounded(x, v);
    if (gamma) v = v * (load_tail(gamma + i, n) + o);
    store_tail(y + i, v, n);
    if (y_fp32) store_tail(y_fp32 + i, v, n);
  }
}

// The two passes over a row with eight lanes; norm_avx512.cpp has them with sixteen.
struct EightLanes {
  template <class T>
  static float gather(const T* x, const T* residual, T* out, float* row, int64_t cols) {
    return gather_row(x, residual, out, row, cols);
  }
  template <bool kTwice, class T, class G>
  static void scale(const T* x, const float* row, const G* gamma, float offset, float rstd, T* y, float* y_fp32,
                    int64_t cols) {
    scale_row<T, G, kTwice>(x, row, gamma, offset, rstd, y, y_fp32, cols);
  }
};

template <class Lanes, class T, class G>
void rms_rows(const RmsNormArgs& a, int64_t begin, int64_t end, float* row) {
  const G* gamma = static_cast<const G*>(a.gamma);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + r * a.cols : nullptr;
    T* out = a.sum ? static_cast<T*>(a.sum) + r * a.cols : nullptr;
    T* y = static_cast<T*>(a.y) + r * a.cols;
    float* y_fp32 = a.y_fp32 ? a.y_fp32 + r * a.cols : nullptr;
    const float squares = Lanes::gather(x, residual, out, row, a.cols);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.cols) + a.epsilon);
    if (a.rstd) a.rstd[r] = rstd;
    if (residual && sizeof(T) == 2) {
      Lanes::template scale<true>(x, row, gamma, a.gamma_offset, rstd, y, y_fp32, a.cols);
    } else {
      Lanes::template scale<false>(x, residual ? row : nullptr, gamma, a.gamma_offset, rstd, y, y_fp32, a.cols);
    }
  }
}

template <class Lanes>
void rms_norm_rows(const RmsNormArgs& a, int64_t begin, int64_t end, float* row) {
  const bool wide = a.gamma_dtype == DType::F32;
  switch (a.dtype) {
    case DType::BF16:
      return wide ? rms_rows<Lanes, bf16, float>(a, begin, end, row) : rms_rows<Lanes, bf16, bf16>(a, begin, end, row);
    case DType::F16:
      return wide ? rms_rows<Lanes, f16, float>(a, begin, end, row) : rms_rows<Lanes, f16, f16>(a, begin, end, row);
    default:
      return rms_rows<Lanes, float, float>(a, begin, end, row);
  }
}

template <class T, class G>
void layer_rows(const LayerNormArgs& a, int64_t begin, int64_t end, float* row) {
  const G *gamma = static_cast<const G*>(a.gamma), *beta = static_cast<const G*>(a.beta);
  const int64_t cols = a.cols;
  const float count = static_cast<float>(cols);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * cols;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + r * cols : nullptr;
    T* out = a.sum ? static_cast<T*>(a.sum) + r * cols : nullptr;
    T* y = static_cast<T*>(a.y) + r * cols;
    f32x8 total = splat(0);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = cols - i < kLanes ? cols - i : kLanes;
      f32x8 v = n == kLanes ? load(x + i) : load_tail(x + i, n);
      if (residual) v += n == kLanes ? load(residual + i) : load_tail(residual + i, n);
      if (out) n == kLanes ? store(out + i, v) : store_tail(out + i, v, n);
      n == kLanes ? store(row + i, v) : store_tail(row + i, v, n);
      total += v;
    }
    const float mean = sum(total) / count;
    const f32x8 m = splat(mean);
    f32x8 squares = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) {
      const f32x8 d = load(row + i) - m;
      squares += d * d;
    }
    float square_sum = sum(squares);
    for (; i < cols; ++i) square_sum += (row[i] - mean) * (row[i] - mean);
    const float rstd = 1.0f / std::sqrt(square_sum / count + a.epsilon);
    const f32x8 s = splat(rstd);
    for (i = 0; i < cols; i += kLanes) {
      const int64_t n = cols - i < kLanes ? cols - i : kLanes;
      f32x8 v = ((n == kLanes ? load(row + i) : load_tail(row + i, n)) - m) * s;
      if (gamma) v *= n == kLanes ? load(gamma + i) : load_tail(gamma + i, n);
      if (beta) v += n == kLanes ? load(beta + i) : load_tail(beta + i, n);
      n == kLanes ? store(y + i, v) : store_tail(y + i, v, n);
    }
    auto keep = [&](void* stats, float value) {
      if (!stats) return;
      if (a.stats_dtype == DType::F32) {
        static_cast<float*>(stats)[r] = value;
      } else if (a.stats_dtype == DType::BF16) {
        static_cast<bf16*>(stats)[r] = from_float<bf16>(value);
      } else {
        static_cast<f16*>(stats)[r] = from_float<f16>(value);
      }
    };
    keep(a.mean, mean);
    keep(a.rstd, rstd);
  }
}

void layer_norm_rows(const LayerNormArgs& a, int64_t begin, int64_t end, float* row) {
  const bool wide = a.weight_dtype == DType::F32;
  switch (a.dtype) {
    case DType::BF16:
      return wide ? layer_rows<bf16, float>(a, begin, end, row) : layer_rows<bf16, bf16>(a, begin, end, row);
    case DType::F16:
      return wide ? layer_rows<f16, float>(a, begin, end, row) : layer_rows<f16, f16>(a, begin, end, row);
    default:
      return layer_rows<float, float>(a, begin, end, row);
  }
}

}  // namespace

struct NormKernels {
  void (*rms_norm)(const RmsNormArgs&, int64_t begin, int64_t end, float* row);
  void (*layer_norm)(const LayerNormArgs&, int64_t begin, int64_t end, float* row);
};
extern const NormKernels kNormKernelsAvx2;
void rms_norm_rows_avx512(const RmsNormArgs& a, int64_t begin, int64_t end, float* row);

}  // namespace aloft
