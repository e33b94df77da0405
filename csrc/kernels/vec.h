// Eight fp32 lanes, written once with the compiler's vector extension: a source that includes this can be
// compiled for the base instruction set, for AVX2 (name_avx2.cpp) and for NEON. All names live in an
// anonymous namespace: code compiled for one instruction set is never merged into another by the linker.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/half.h"

#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wunused-function"
#define ALOFT_INLINE [[gnu::always_inline]] static inline

namespace aloft {
namespace {

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
constexpr int kLanes = 8;

ALOFT_INLINE f32x8 splat(float v) { return f32x8{v, v, v, v, v, v, v, v}; }
ALOFT_INLINE u32x8 splat_u(uint32_t v) { return u32x8{v, v, v, v, v, v, v, v}; }

ALOFT_INLINE f32x8 load(const float* p) {
  f32x8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
ALOFT_INLINE void store(float* p, f32x8 v) { std::memcpy(p, &v, sizeof v); }

ALOFT_INLINE f32x8 load(const bf16* p) {
  u16x8 h;
  std::memcpy(&h, p, sizeof h);
#if defined(__AVX2__)
  return (f32x8)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16));
#else
  return (f32x8)(__builtin_convertvector(h, u32x8) << 16);
#endif
}

ALOFT_INLINE u32x8 bf16_bits(f32x8 v) {
  const u32x8 u = (u32x8)v, high = u >> 16;
  const u32x8 rounded = (u + 0x7fff + (high & 1)) >> 16;
  return v == v ? rounded : high | 0x40;
}
ALOFT_INLINE void store(bf16* p, f32x8 v) {
  const u32x8 bits = bf16_bits(v);
#if defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
  const __m128i h = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  const u16x8 h = __builtin_convertvector(bits, u16x8);
#endif
  std::memcpy(p, &h, sizeof h);
}

ALOFT_INLINE f32x8 load(const f16* p) {
#if defined(__AVX2__)
  __m128i h;
  std::memcpy(&h, p, sizeof h);
  return (f32x8)_mm256_cvtph_ps(h);
#else
  f32x8 v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}
ALOFT_INLINE void store(f16* p, f32x8 v) {
#if defined(__AVX2__)
  const __m128i h = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(p, &h, sizeof h);
#else
  for (int i = 0; i < kLanes; ++i) p[i] = from_float<f16>(v[i]);
#endif
}

// Rounds fp32 lanes to the type and back: what a store followed by a load would give.
ALOFT_INLINE f32x8 rounded(const float*, f32x8 v) { return v; }
ALOFT_INLINE f32x8 rounded(const bf16*, f32x8 v) { return (f32x8)(bf16_bits(v) << 16); }
ALOFT_INLINE f32x8 rounded(const f16*, f32x8 v) {
  f16 h[kLanes];
  store(h, v);
  return load(h);
}
ALOFT_INLINE float rounded(const float*, float v) { return v; }
ALOFT_INLINE float rounded(const bf16*, float v) { return to_float(from_float<bf16>(v)); }
ALOFT_INLINE float rounded(const f16*, float v) { return to_float(from_float<f16>(v)); }

// The first n < 8 elements; the other lanes are zero. Never reads or writes beyond them.
template <class T>
ALOFT_INLINE f32x8 load_tail(const T* p, int64_t n) {
  T part[kLanes] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * sizeof(T));
  return load(part);
}
template <class T>
ALOFT_INLINE void store_tail(T* p, f32x8 v, int64_t n) {
  T part[kLanes];
  store(part, v);
  std::memcpy(p, part, static_cast<size_t>(n) * sizeof(T));
}

ALOFT_INLINE float sum(f32x8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
ALOFT_INLINE f32x8 select(i32x8 mask, f32x8 a, f32x8 b) { return mask ? a : b; }
// A NaN in either gives b, as the instructions do.
#if defined(__AVX2__)
ALOFT_INLINE f32x8 vmax(f32x8 a, f32x8 b) { return (f32x8)_mm256_max_ps((__m256)a, (__m256)b); }
ALOFT_INLINE f32x8 vmin(f32x8 a, f32x8 b) { return (f32x8)_mm256_min_ps((__m256)a, (__m256)b); }
#else
ALOFT_INLINE f32x8 vmax(f32x8 a, f32x8 b) { return select(a > b, a, b); }
ALOFT_INLINE f32x8 vmin(f32x8 a, f32x8 b) { return select(a < b, a, b); }
#endif

// e^v, about 1 ulp; 0 below -87.68 and inf above 88.37 (a little before float32 itself ends). NaN stays NaN.
ALOFT_INLINE f32x8 vexp(f32x8 v) {
  const f32x8 x = vmax(splat(-88.03f), vmin(splat(89.0f), v));
  const f32x8 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x8 shifted = x * splat(1.44269504f) + magic;
  const f32x8 n = shifted - magic;
  f32x8 r = x - n * splat(0.693145752f);
  r = r - n * splat(1.42860677e-6f);
  f32x8 p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * (r * r) + (r + splat(1.0f));
  // n + 127 becomes the exponent: 0 makes zero, 255 infinity
  return p * (f32x8)(((i32x8)shifted - ((i32x8)magic - 127)) << 23);
}

// erf, within 5e-7: an odd rational function, constant beyond |v| = 4.
ALOFT_INLINE f32x8 verf(f32x8 v) {
  const f32x8 x = vmax(splat(-4.0f), vmin(splat(4.0f), v));
  const f32x8 s = x * x;
  f32x8 p = splat(-2.72614225801306e-10f);
  p = p * s + splat(2.77068142495902e-08f);
  p = p * s + splat(-2.10102402082508e-06f);
  p = p * s + splat(-5.69250639462346e-05f);
  p = p * s + splat(-7.34990630326855e-04f);
  p = p * s + splat(-2.95459980854025e-03f);
  p = p * s + splat(-1.60960333262415e-02f);
  f32x8 q = splat(-1.45660718464996e-05f);
  q = q * s + splat(-2.13374055278905e-04f);
  q = q * s + splat(-1.68282697438203e-03f);
  q = q * s + splat(-7.37332916720468e-03f);
  q = q * s + splat(-1.42647390514189e-02f);
  return x * p / q;
}

ALOFT_INLINE f32x8 vsigmoid(f32x8 v) { return splat(1.0f) / (splat(1.0f) + vexp(-v)); }

}  // namespace
}  // namespace aloft
