// Symmetric int8 rows, sixteen lanes at a time; everything else is that of AVX2. The bits are the same.
#include "kernels/quantize_impl.h"
#include "kernels/vec_avx512.h"

namespace aloft {
namespace {

template <class T>
float largest16(const T* x, int64_t cols) {
  f32x16 m[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  int64_t i = 0;
  for (; i + 2 * kWide <= cols; i += 2 * kWide) {  // a NaN is the first operand: the second stays
    m[0] = _mm512_max_ps(_mm512_abs_ps(load16(x + i, 0xffff)), m[0]);
    m[1] = _mm512_max_ps(_mm512_abs_ps(load16(x + i + kWide, 0xffff)), m[1]);
  }
  for (; i < cols; i += kWide) m[0] = _mm512_max_ps(_mm512_abs_ps(load16(x + i, first_lanes(cols - i))), m[0]);
  return _mm512_reduce_max_ps(_mm512_max_ps(m[0], m[1]));
}

template <class T>
float row16(const T* x, int64_t cols, int8_t* y) {
  constexpr Range range = range_of(QuantOut::I8);
  const float m = largest16(x, cols), factor = m > 0 ? range.high / m : 0.f;
  if (factor > 3.4028234e38f) return scale_and_put<T, QuantOut::I8>(x, cols, m, y);
  const f32x16 f = _mm512_set1_ps(factor), low = _mm512_set1_ps(range.low), high = _mm512_set1_ps(range.high);
  for (int64_t i = 0; i < cols; i += kWide) {
    const __mmask16 some = first_lanes(cols - i);
    const f32x16 v = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(load16(x + i, some), f), low), high);
    _mm_mask_storeu_epi8(y + i, some, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  return m / range.high;
}

template <class T>
void rows16(const DynamicQuantArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    a.scale[r] = row16(static_cast<const T*>(a.x) + r * a.cols, a.cols, static_cast<int8_t*>(a.y) + r * a.cols);
  }
}

void dynamic_rows_512(const DynamicQuantArgs& a, int64_t begin, int64_t end, float* row) {
  if (a.smooth || a.offset || a.out != QuantOut::I8) return kQuantizeKernelsAvx2.dynamic(a, begin, end, row);
  switch (a.dtype) {
    case DType::BF16:
      return rows16<bf16>(a, begin, end);
    case DType::F16:
      return rows16<f16>(a, begin, end);
    default:
      return rows16<float>(a, begin, end);
  }
}

}  // namespace

QuantizeKernels quantize_kernels_avx512() {
  QuantizeKernels kernels = kQuantizeKernelsAvx2;
  kernels.dynamic = dynamic_rows_512;
  return kernels;
}

}  // namespace aloft
