// AVX-512 tiles: up to 14 rows x 32 columns (two panels): 28 of the 32 registers are accumulators, two the
// widened weights, and the left operand is broadcast from memory by the multiply-add itself. With fewer rows a
// tile takes up to 8 panels, for 8 or more independent chains. Same order of k as everywhere (matmul.h),
// so the results are those of the AVX2 tiles bit for bit.
// bf16 weights widen by one zero-extending load and a shift. vdpbf16ps is not used: it adds pairs
// in one step and flushes denormals, so a row's result would differ from the fused multiply-adds used
// everywhere else.
#include <immintrin.h>

#include "kernels/matmul_isa.h"

// GCC 12 takes the undefined registers inside its own AVX-512 intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace aloft::matmul_detail {
namespace {

inline __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load16(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline __m512 load16(const bf16* p) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

template <class T, int Rows, int Panels>
void micro(const float* a, const void* weights, int64_t panel_stride, int64_t k_stride, int64_t k, float* accumulators,
           int64_t row, bool fresh, Ahead ahead) {
  const T* b = static_cast<const T*>(weights);
  __m512 sum[Rows][Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
      sum[r][p] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(accumulators + r * row + p * kPanel);
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    __m512 w[Panels];
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
      const T* from = b + p * panel_stride;
      _mm_prefetch(ahead.from + p * ahead.panel, _MM_HINT_T1);
      w[p] = load16(from);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r * kRowStride]);
#pragma GCC unroll 8
      for (int p = 0; p < Panels; ++p) sum[r][p] = _mm512_fmadd_ps(x, w[p], sum[r][p]);
    }
    ++a;
    b += k_stride;
    ahead.from += ahead.step;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) _mm512_storeu_ps(accumulators + r * row + p * kPanel, sum[r][p]);
  }
}

template <class T, int Rows>
Micro pick_panels(int panels) {
  switch (panels) {
    case 1:
      return micro<T, Rows, 1>;
    case 2:
      return micro<T, Rows, 2>;
    case 4:
      if constexpr (Rows <= 5) return micro<T, Rows, 4>;
      return nullptr;
    case 8:
      if constexpr (Rows <= 2) return micro<T, Rows, 8>;
      return nullptr;
    default:
      return nullptr;
  }
}

template <class T>
Micro pick(int rows, int panels) {
  using Pick = Micro (*)(int);
  static constexpr Pick table[14] = {pick_panels<T, 1>,  pick_panels<T, 2>,  pick_panels<T, 3>,  pick_panels<T, 4>,
                                     pick_panels<T, 5>,  pick_panels<T, 6>,  pick_panels<T, 7>,  pick_panels<T, 8>,
                                     pick_panels<T, 9>,  pick_panels<T, 10>, pick_panels<T, 11>, pick_panels<T, 12>,
                                     pick_panels<T, 13>, pick_panels<T, 14>};
  return rows > 14 ? nullptr : table[rows - 1](panels);
}

Micro micro_for(Element type, int rows, int panels) {
  switch (type) {
    case Element::BF16:
      return pick<bf16>(rows, panels);
    case Element::F16:
      return pick<f16>(rows, panels);
    default:
      return pick<float>(rows, panels);
  }
}

template <class T>
void pack_columns(const T* from, int64_t k_stride, int64_t k, float* to) {
  for (int64_t i = 0; i < k; ++i, from += k_stride, to += kPanel) {
    _mm512_storeu_ps(to, load16(from));
  }
}

// rows[i] lane j -> rows[j] lane i.
inline void transpose16(__m512 (&v)[16]) {
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

template <class T>
int64_t transpose_panel(const T* from, int64_t n_stride, int64_t k, float* to) {
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    __m512 v[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) v[j] = load16(from + j * n_stride + i);
    transpose16(v);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) _mm512_storeu_ps(to + (i + j) * kPanel, v[j]);
  }
  return i;
}

// Pairs of bf16 values travel as one 32-bit lane: half the shuffles.
int64_t transpose_panel(const bf16* from, int64_t n_stride, int64_t k, float* to) {
  const __m512i upper = _mm512_set1_epi32(0xffff0000);
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    __m512 v[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const bf16* p = from + j * n_stride + i;
      _mm_prefetch(reinterpret_cast<const char*>(p) + 256, _MM_HINT_T0);
      v[j] = _mm512_loadu_ps(reinterpret_cast<const float*>(p));
    }
    transpose16(v);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const __m512i pair = _mm512_castps_si512(v[j]);
      _mm512_storeu_si512(to + (i + 2 * j) * kPanel, _mm512_slli_epi32(pair, 16));
      _mm512_storeu_si512(to + (i + 2 * j + 1) * kPanel, _mm512_and_si512(pair, upper));
    }
  }
  return i;
}

template <class T>
void pack_rows(const T* from, int64_t n_stride, int64_t k, float* to) {
  int64_t i = transpose_panel(from, n_stride, k, to);
  if (sizeof(T) == 2 && i + 16 <= k) {  // the panels of a transposed NZ weight are 16 wide
    __m512 v[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) v[j] = load16(from + j * n_stride + i);
    transpose16(v);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) _mm512_storeu_ps(to + (i + j) * kPanel, v[j]);
    i += 16;
  }
  for (; i < k; ++i) {
    for (int j = 0; j < kPanel; ++j) to[i * kPanel + j] = to_float(from[j * n_stride + i]);
  }
}

template <class T>
void widen(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(to + i, load16(from + i));
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

inline void store16(__m512 v, float* to) { _mm512_storeu_ps(to, v); }
inline void store16(__m512 v, f16* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store16(__m512 v, bf16* to) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i words = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
}

template <class T>
void narrow(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store16(_mm512_loadu_ps(from + i), to + i);
  for (; i < count; ++i) to[i] = from_float<T>(from[i]);
}

#define ALOFT_BY_TYPE(function, pointer, ...)                         \
  switch (type) {                                                     \
    case Element::BF16:                                               \
      return function(static_cast<bf16 pointer>(from), __VA_ARGS__);  \
    case Element::F16:                                                \
      return function(static_cast<f16 pointer>(from), __VA_ARGS__);   \
    default:                                                          \
      return function(static_cast<float pointer>(from), __VA_ARGS__); \
  }

void pack_columns_any(Element type, const void* from, int64_t k_stride, int64_t k, float* to) {
  ALOFT_BY_TYPE(pack_columns, const*, k_stride, k, to)
}
void pack_rows_any(Element type, const void* from, int64_t n_stride, int64_t k, float* to) {
  ALOFT_BY_TYPE(pack_rows, const*, n_stride, k, to)
}
void widen_any(Element type, const void* from, int64_t count, float* to) { ALOFT_BY_TYPE(widen, const*, count, to) }
#undef ALOFT_BY_TYPE

void narrow_any(Element type, const float* from, int64_t count, void* to) {
  switch (type) {
    case Element::BF16:
      return narrow(from, count, static_cast<bf16*>(to));
    case Element::F16:
      return narrow(from, count, static_cast<f16*>(to));
    default:
      return narrow(from, count, static_cast<float*>(to));
  }
}

}  // namespace

const Kernels& avx512_kernels() {
  static constexpr Kernels kernels{14, micro_for, pack_columns_any, pack_rows_any, widen_any, narrow_any};
  return kernels;
}

}  // namespace aloft::matmul_detail
