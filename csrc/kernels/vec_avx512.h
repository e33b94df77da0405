// Sixteen fp32 lanes for *_avx512.cpp files: loads, stores and roundings of the element types, and what
// kernels/vec.h has of functions. The first n of 16 elements are read and written with a mask. Internal linkage.
#pragma once
// GCC 12's AVX-512 header sets "undefined" vectors from themselves (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <immintrin.h>

#include <cstdint>

#include "kernels/half.h"

namespace aloft {
namespace {

using f32x16 = __m512;
constexpr int64_t kWide = 16;

inline __mmask16 first_lanes(int64_t n) { return n >= kWide ? 0xffff : static_cast<__mmask16>((1u << n) - 1); }

inline f32x16 load16(const float* p, __mmask16 m) { return _mm512_maskz_loadu_ps(m, p); }
inline f32x16 load16(const bf16* p, __mmask16 m) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), 16));
}
inline f32x16 load16(const f16* p, __mmask16 m) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p)); }

// The upper half of each lane holds the bf16 value nearest, ties to even; NaN stays NaN.
inline __m512i bf16_upper(f32x16 v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
}

inline void store16(float* p, f32x16 v, __mmask16 m) { _mm512_mask_storeu_ps(p, m, v); }
inline void store16(bf16* p, f32x16 v, __mmask16 m) {
  _mm256_mask_storeu_epi16(p, m, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_upper(v), 16)));
}
inline void store16(f16* p, f32x16 v, __mmask16 m) {
  _mm256_mask_storeu_epi16(p, m, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// What storing and loading again would give.
inline f32x16 rounded16(const float*, f32x16 v) { return v; }
inline f32x16 rounded16(const bf16*, f32x16 v) {
  return _mm512_castsi512_ps(_mm512_and_si512(bf16_upper(v), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
inline f32x16 rounded16(const f16*, f32x16 v) {
  return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The order of kernels/vec.h for two accumulators of eight lanes.
inline float sum16(f32x16 v) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

// 2^y for y <= 127, relative error 1.5e-7 (a minimax polynomial on [0, 1)); NaN stays NaN.
inline f32x16 exp2_16(f32x16 y) {
  const f32x16 f = _mm512_reduce_ps(y, 0x09);  // y - floor(y)
  f32x16 e = _mm512_set1_ps(1.8671301659196615e-3f);
  e = _mm512_fmadd_ps(e, f, _mm512_set1_ps(9.017029777169228e-3f));
  e = _mm512_fmadd_ps(e, f, _mm512_set1_ps(5.579991266131401e-2f));
  e = _mm512_fmadd_ps(e, f, _mm512_set1_ps(2.4016444385051727e-1f));
  e = _mm512_fmadd_ps(e, f, _mm512_set1_ps(6.931512951850891e-1f));
  e = _mm512_fmadd_ps(e, f, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(e, y);  // by 2^floor(y)
}

// 1 / (1 + e^-v), within 2 ulp; 0 below -86.6 as in kernels/vec.h.
inline f32x16 sigmoid16(f32x16 v) {
  const f32x16 one = _mm512_set1_ps(1.f), limit = _mm512_set1_ps(125.f);
  const f32x16 y = _mm512_mul_ps(v, _mm512_set1_ps(-1.44269504f));
  const __mmask16 inside = _mm512_cmp_ps_mask(y, limit, _CMP_NGT_UQ);  // NaN too
  const f32x16 d = _mm512_add_ps(one, exp2_16(_mm512_min_ps(limit, y)));
  const f32x16 r = _mm512_rcp14_ps(d);
  return _mm512_maskz_fmadd_ps(inside, r, _mm512_fnmadd_ps(d, r, one), r);
}

}  // namespace
}  // namespace aloft
