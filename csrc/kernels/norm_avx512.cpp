// Root mean square normalisation, sixteen lanes at a time; layer normalisation is that of AVX2.
#include <cmath>
#include <type_traits>

#include "kernels/norm_impl.h"
#include "kernels/vec_avx512.h"

namespace aloft {
namespace {

struct SixteenLanes {
  // v = x (+ residual) of one row into `row` (fp32), its rounding into `out`; returns sum(v^2).
  template <class T>
  static float gather(const T* x, const T* residual, T* out, float* row, int64_t cols) {
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

  template <bool kTwice, class T, class G>
  static void scale(const T* x, const float* row, const G* gamma, float offset, float rstd, T* y, float* y_fp32,
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
};

}  // namespace

void rms_norm_rows_avx512(const RmsNormArgs& a, int64_t begin, int64_t end, float* row) {
  rms_norm_rows<SixteenLanes>(a, begin, end, row);
}

}  // namespace aloft
