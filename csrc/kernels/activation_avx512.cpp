// SiLU and what it gates, sixteen lanes at a time; the other activations and layouts are those of AVX2.
#include "kernels/activation_impl.h"
#include "kernels/vec_avx512.h"

namespace aloft {
namespace {

inline f32x16 silu(f32x16 v, f32x16 alpha) { return _mm512_mul_ps(v, sigmoid16(_mm512_mul_ps(v, alpha))); }

template <class T>
void silu_range(const void* x, void* y, int64_t begin, int64_t end, float alpha_) {
  const T* f = static_cast<const T*>(x);
  T* t = static_cast<T*>(y);
  const f32x16 alpha = _mm512_set1_ps(alpha_);
  for (int64_t i = begin; i < end; i += kWide) {
    const __mmask16 m = first_lanes(end - i);
    store16(t + i, silu(load16(f + i, m), alpha), m);
  }
}

template <class T, bool kPlain>
void silu_gated_rows(const GatedArgs& a, int64_t begin, int64_t end) {
  const f32x16 alpha = _mm512_set1_ps(a.alpha), high = _mm512_set1_ps(a.limit), low = _mm512_set1_ps(-a.limit);
  const f32x16 bias = _mm512_set1_ps(a.bias);
  for (int64_t r = begin; r < end; ++r) {
    const T* act = static_cast<const T*>(a.act) + r * a.stride;
    const T* gate = static_cast<const T*>(a.gate) + r * a.stride;
    T* y = static_cast<T*>(a.y) + r * a.cols;
    T* activated = a.activated ? static_cast<T*>(a.activated) + r * a.cols : nullptr;
    for (int64_t i = 0; i < a.cols; i += kWide) {
      const __mmask16 m = first_lanes(a.cols - i);
      f32x16 v = load16(act + i, m), g = load16(gate + i, m);
      if (!kPlain && a.clipped) {  // the second operand is kept when the first is NaN
        v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, high, _CMP_GT_OQ), high);
        g = _mm512_mask_mov_ps(g, _mm512_cmp_ps_mask(g, high, _CMP_GT_OQ), high);
        g = _mm512_mask_mov_ps(g, _mm512_cmp_ps_mask(g, low, _CMP_LT_OQ), low);
        g = _mm512_add_ps(g, bias);
      }
      const f32x16 part = silu(v, alpha);
      store16(y + i, _mm512_mul_ps(part, g), m);
      if (!kPlain && activated) store16(activated + i, part, m);
    }
  }
}

template <class T, int kIndex>
void gated_512(const GatedArgs& a, int64_t begin, int64_t end) {
  if (a.step != 1) return kActivationKernelsAvx2.gated[0][kIndex](a, begin, end);
  if (a.clipped || a.activated) return silu_gated_rows<T, false>(a, begin, end);
  silu_gated_rows<T, true>(a, begin, end);
}

template <class T, int kIndex>
void silu_sum_rows(Activation kind, const float* sums, int64_t rows, void* y_, int64_t y_stride) {
  if (kind != Activation::Silu) return kActivationKernelsAvx2.gated_sums[kIndex](kind, sums, rows, y_, y_stride);
  T* y = static_cast<T*>(y_);
  const f32x16 alpha = _mm512_set1_ps(1.f);
  for (int64_t r = 0; r < rows; ++r, sums += 2 * kWide, y += y_stride) {
    const f32x16 v = rounded16(y, _mm512_loadu_ps(sums)), g = rounded16(y, _mm512_loadu_ps(sums + kWide));
    store16(y, _mm512_mul_ps(silu(v, alpha), g), 0xffff);
  }
}

}  // namespace

ActivationKernels activation_kernels_avx512() {
  ActivationKernels kernels = kActivationKernelsAvx2;
  constexpr int kSilu = static_cast<int>(Activation::Silu);
  kernels.activate[kSilu][0] = silu_range<float>;
  kernels.activate[kSilu][1] = silu_range<f16>;
  kernels.activate[kSilu][2] = silu_range<bf16>;
  kernels.gated[kSilu][0] = gated_512<float, 0>;
  kernels.gated[kSilu][1] = gated_512<f16, 1>;
  kernels.gated[kSilu][2] = gated_512<bf16, 2>;
  kernels.gated_sums[0] = silu_sum_rows<float, 0>;
  kernels.gated_sums[1] = silu_sum_rows<f16, 1>;
  kernels.gated_sums[2] = silu_sum_rows<bf16, 2>;
  return kernels;
}

}  // namespace aloft
