// Root mean square normalisation, sixteen lanes at a time; layer normalisation is that of AVX2.
#include <cmath>
#include <type_traits>

#include "kernels/norm_impl.h"
#include "kernels/vec_avx512.h"

namespace aloft {
namespace {

// v = x (+ residual) of one row into `row` (fp32), its rounding into `out`; returns sum(v^2).
template <class T>
float gather_row_512(const T* x, const T* residual, T* out, float* row, int64_t cols) {
  f32x16 total = _mm512_setzero_ps(), total2 = total;
  const auto one = [&](int64_t i, __mmask16 m, f32x16* sum) [[gnu::always_inline]] {
    f32x16 v = load16(x + i, m);
    if (residual) {
      v = _mm512_add_ps(v, load16(residual + i, m));
      if (out) store16(out + i, v, m);
      if (std::is_same<T, f16>::value) v = rounded16(x, v);
      store16(row + i, v, m);
    }
    *sum = _mm512_fmadd_ps(v, v, *sum);
  };
  int64_t i = 0;
  for (; i + 2 * kWide <= cols; i += 2 * kWide) {
    one(i, 0xffff, &total);
    one(i + kWide, 0xffff, &total2);
  }
  for (; i < cols; i += kWide) one(i, first_lanes(cols - i), &total);
  return sum16(_mm512_add_ps(total, total2));
}

template <class T, class G, bool kTwice>
void scale_row_512(const T* x, const float* row, const G* gamma, float offset, float rstd, T* y, float* y_fp32,
                   int64_t cols) {
  const f32x16 r = _mm512_set1_ps(rstd), o = _mm512_set1_ps(offset);
  for (int64_t i = 0; i < cols; i += kWide) {
    const __mmask16 m = first_lanes(cols - i);
    f32x16 v = _mm512_mul_ps(row ? load16(row + i, m) : load16(x + i, m), r);
    if (kTwice) v = rounded16(x, v);
    if (gamma) v = _mm512_mul_ps(v, _mm512_add_ps(load16(gamma + i, m), o));
    store16(y + i, v, m);
    if (y_fp32) store16(y_fp32 + i, v, m);
  }
}

template <class T, class G>
void rms_rows_512(const RmsNormArgs& a, int64_t begin, int64_t end, float* row) {
  const G* gamma = static_cast<const G*>(a.gamma);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + r * a.cols : nullptr;
    T* out = a.sum ? static_cast<T*>(a.sum) + r * a.cols : nullptr;
    T* y = static_cast<T*>(a.y) + r * a.cols;
    float* y_fp32 = a.y_fp32 ? a.y_fp32 + r * a.cols : nullptr;
    const float squares = gather_row_512(x, residual, out, row, a.cols);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.cols) + a.epsilon);
    if (a.rstd) a.rstd[r] = rstd;
    if (residual && sizeof(T) == 2) {
      scale_row_512<T, G, true>(x, row, gamma, a.gamma_offset, rstd, y, y_fp32, a.cols);
    } else {
      scale_row_512<T, G, false>(x, residual ? row : nullptr, gamma, a.gamma_offset, rstd, y, y_fp32, a.cols);
    }
  }
}

}  // namespace

void rms_norm_rows_avx512(const RmsNormArgs& a, int64_t begin, int64_t end, float* row) {
  const bool wide = a.gamma_dtype == DType::F32;
  switch (a.dtype) {
    case DType::BF16:
      return wide ? rms_rows_512<bf16, float>(a, begin, end, row) : rms_rows_512<bf16, bf16>(a, begin, end, row);
    case DType::F16:
      return wide ? rms_rows_512<f16, float>(a, begin, end, row) : rms_rows_512<f16, f16>(a, begin, end, row);
    default:
      return rms_rows_512<float, float>(a, begin, end, row);
  }
}

}  // namespace aloft
