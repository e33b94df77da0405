// AVX2: two registers are a row of a panel. A row of bf16 weights is one load; the even columns widen by a shift, the
// odd ones by a mask, and sums are put back into column order where they are stored.
#include <immintrin.h>

#include "kernels/matmul_isa.h"

namespace aloft::matmul_detail {
namespace {

using Reg = __m256;
constexpr int kRegs = 2, kMaxRows = 3;
constexpr bool fits(int rows, int panels) { return rows * panels <= 3; }
struct Row {
  Reg v[kRegs];
};

inline Reg zero() { return _mm256_setzero_ps(); }
inline Reg broadcast(const float* p) { return _mm256_broadcast_ss(p); }
inline Reg add(Reg x, Reg y) { return _mm256_add_ps(x, y); }
inline Reg fmadd(Reg x, Reg y, Reg sum) { return _mm256_fmadd_ps(x, y, sum); }
inline Row zero_row() { return {{zero(), zero()}}; }
inline Row load_row(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline void store_row(float* p, Row row) {
  _mm256_storeu_ps(p, row.v[0]);
  _mm256_storeu_ps(p + 8, row.v[1]);
}

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

template <class T>
struct Weights {
  static inline Row load(const T* p) { return {{load8(p), load8(p + 8)}}; }
  static inline Row to_kernel(Row v) { return v; }
  static inline Row to_memory(Row v) { return v; }
};

template <>
struct Weights<bf16> {  // even columns, odd columns
  static inline Row load(const bf16* p) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
             _mm256_and_ps(_mm256_castsi256_ps(words), _mm256_castsi256_ps(_mm256_set1_epi32(0xffff0000)))}};
  }
  static inline Row to_kernel(Row v) {
    const __m256 low = _mm256_permute2f128_ps(v.v[0], v.v[1], 0x20);   // 0-3, 8-11
    const __m256 high = _mm256_permute2f128_ps(v.v[0], v.v[1], 0x31);  // 4-7, 12-15
    return {{_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)}};
  }
  static inline Row to_memory(Row v) {
    const __m256 low = _mm256_unpacklo_ps(v.v[0], v.v[1]), high = _mm256_unpackhi_ps(v.v[0], v.v[1]);
    return {{_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)}};
  }
};

// rows[i] lane j -> rows[j] lane i.
inline void transpose8(__m256 (&v)[8]) {
  __m256 t[8], u[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// k values 0 .. of 16 rows into to[k * 16 + row]; returns where it stopped.
template <class T>
int64_t transpose_panel(const T* from, int64_t n_stride, int64_t k, float* to) {
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    for (int half = 0; half < kPanel; half += 8) {
      __m256 v[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) v[j] = load8(from + (half + j) * n_stride + i);
      transpose8(v);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) _mm256_storeu_ps(to + (i + j) * kPanel + half, v[j]);
    }
  }
  return i;
}

// Pairs of bf16 values travel as one 32-bit lane: half the shuffles.
int64_t transpose_panel(const bf16* from, int64_t n_stride, int64_t k, float* to) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff0000));
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    for (int half = 0; half < kPanel; half += 8) {
      __m256 v[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const bf16* p = from + (half + j) * n_stride + i;
        _mm_prefetch(reinterpret_cast<const char*>(p) + 256, _MM_HINT_T0);
        v[j] = _mm256_loadu_ps(reinterpret_cast<const float*>(p));
      }
      transpose8(v);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v[j]), 16));
        _mm256_storeu_ps(to + (i + 2 * j) * kPanel + half, even);
        _mm256_storeu_ps(to + (i + 2 * j + 1) * kPanel + half, _mm256_and_ps(v[j], upper));
      }
    }
  }
  return i;
}

inline void narrow8(__m256 v, float* to) { _mm256_storeu_ps(to, v); }
inline void narrow8(__m256 v, f16* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline void narrow8(__m256 v, bf16* to) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}
template <class T>
inline void narrow16(const float* from, T* to) {
  narrow8(_mm256_loadu_ps(from), to);
  narrow8(_mm256_loadu_ps(from + 8), to + 8);
}

constexpr CompactMicro (*kCompactMicro)(int, int) = nullptr;
constexpr void (*kWidenUnit)(const compact::Weights&, int64_t, float*) = nullptr;

}  // namespace
}  // namespace aloft::matmul_detail

#include "kernels/matmul_vector.h"

namespace aloft::matmul_detail {
const Kernels& avx2_kernels() { return kKernels; }
}  // namespace aloft::matmul_detail
