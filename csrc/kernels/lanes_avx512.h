// AVX-512 pieces shared by matmul_avx512.cpp and the *_amx.cpp files; internal linkage throughout.
#pragma once
#include <immintrin.h>

// GCC 12 takes the undefined registers inside its own AVX-512 intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace aloft {
namespace {

// rows[i] lane j -> rows[j] lane i, lanes of 32 bits.
[[gnu::always_inline]] inline void transpose16(__m512 (&v)[16]) {
  __m512 t[16], u[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {  // u[i + q] lane 4b + s: row i + s, column 4b + q
    u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 16
  for (int q = 0; q < 4; ++q) {
    const __m512 a = _mm512_shuffle_f32x4(u[q], u[q + 4], 0x88), b = _mm512_shuffle_f32x4(u[q + 8], u[q + 12], 0x88);
    const __m512 c = _mm512_shuffle_f32x4(u[q], u[q + 4], 0xdd), d = _mm512_shuffle_f32x4(u[q + 8], u[q + 12], 0xdd);
    v[q] = _mm512_shuffle_f32x4(a, b, 0x88);
    v[q + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
    v[q + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
    v[q + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

}  // namespace
}  // namespace aloft
