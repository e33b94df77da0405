// AVX2 tiles: up to 6 rows x 16 columns, 12 of the 16 registers being accumulators (two per row), two the
// widened weights, one the broadcast value of the left operand. With fewer rows a tile takes 2 or 4 panels
// of 16 columns instead, so that there are always about eight independent chains of multiply-adds to cover
// their latency (each chain walks k in order: see matmul.h).
// Weights: 16 bf16 values are one load; the even columns widen by a shift, the odd ones by a mask, and the
// accumulators are put back into column order when they are stored, once every kChunk steps. Many rows (prefill)
// get their weights widened into an fp32 buffer first (pack_*), so that the widening is paid once for all
// rows; few rows (decode) read them as they lie in memory, each panel being one sequential stream.
#include <immintrin.h>

#include "kernels/matmul_isa.h"

namespace aloft::matmul_detail {
namespace {

struct Pair {
  __m256 first, second;
};

// One row of a panel as two vectors in the kernel's own column order, and the way to and from memory order.
template <class T>
struct Weights;

template <>
struct Weights<float> {
  static inline Pair load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static inline Pair to_kernel(Pair v) { return v; }
  static inline Pair to_memory(Pair v) { return v; }
};

template <>
struct Weights<f16> {
  static inline Pair load(const f16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static inline Pair to_kernel(Pair v) { return v; }
  static inline Pair to_memory(Pair v) { return v; }
};

template <>
struct Weights<bf16> {  // even columns, odd columns
  static inline Pair load(const bf16* p) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
            _mm256_and_ps(_mm256_castsi256_ps(words), _mm256_castsi256_ps(_mm256_set1_epi32(0xffff0000)))};
  }
  static inline Pair to_kernel(Pair v) {
    const __m256 low = _mm256_permute2f128_ps(v.first, v.second, 0x20);   // 0-3, 8-11
    const __m256 high = _mm256_permute2f128_ps(v.first, v.second, 0x31);  // 4-7, 12-15
    return {_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)};
  }
  static inline Pair to_memory(Pair v) {
    const __m256 low = _mm256_unpacklo_ps(v.first, v.second), high = _mm256_unpackhi_ps(v.first, v.second);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
  }
};

template <class T, int Rows, int Panels>
void micro(const float* a, const void* weights, int64_t panel_stride, int64_t k_stride, int64_t k, float* accumulators,
           int64_t row, bool fresh, Ahead ahead) {
  const T* b = static_cast<const T*>(weights);
  Pair sum[Rows][Panels];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
      const float* from = accumulators + r * row + p * kPanel;
      sum[r][p] = fresh ? Pair{_mm256_setzero_ps(), _mm256_setzero_ps()}
                        : Weights<T>::to_kernel({_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)});
    }
  }
  for (int64_t i = 0; i < k; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
      const T* from = b + p * panel_stride;
      _mm_prefetch(ahead.from + p * ahead.panel, _MM_HINT_T1);
      const Pair w = Weights<T>::load(from);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m256 x = _mm256_broadcast_ss(a + r * kRowStride);
        sum[r][p].first = _mm256_fmadd_ps(x, w.first, sum[r][p].first);
        sum[r][p].second = _mm256_fmadd_ps(x, w.second, sum[r][p].second);
      }
    }
    ++a;
    b += k_stride;
    ahead.from += ahead.step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
      float* to = accumulators + r * row + p * kPanel;
      const Pair v = Weights<T>::to_memory(sum[r][p]);
      _mm256_storeu_ps(to, v.first);
      _mm256_storeu_ps(to + 8, v.second);
    }
  }
}

template <class T>
Micro pick(int rows, int panels) {
  static constexpr Micro table[6][3] = {{micro<T, 1, 1>, micro<T, 1, 2>, micro<T, 1, 4>},
                                        {micro<T, 2, 1>, micro<T, 2, 2>, nullptr},
                                        {micro<T, 3, 1>, micro<T, 3, 2>, nullptr},
                                        {micro<T, 4, 1>, nullptr, nullptr},
                                        {micro<T, 5, 1>, nullptr, nullptr},
                                        {micro<T, 6, 1>, nullptr, nullptr}};
  if (rows > 6 || panels > 4) return nullptr;
  return table[rows - 1][panels / 2];
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
    const Pair v = Weights<T>::to_memory(Weights<T>::load(from));
    _mm256_storeu_ps(to, v.first);
    _mm256_storeu_ps(to + 8, v.second);
  }
}

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

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

// k values i .. of 16 rows into to[k * 16 + row]; returns where it stopped.
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

template <class T>
void pack_rows(const T* from, int64_t n_stride, int64_t k, float* to) {
  for (int64_t i = transpose_panel(from, n_stride, k, to); i < k; ++i) {
    for (int j = 0; j < kPanel; ++j) to[i * kPanel + j] = to_float(from[j * n_stride + i]);
  }
}

template <class T>
void widen(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kPanel <= count; i += kPanel) {
    const Pair v = Weights<T>::to_memory(Weights<T>::load(from + i));
    _mm256_storeu_ps(to + i, v.first);
    _mm256_storeu_ps(to + i + 8, v.second);
  }
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

inline void store8(__m256 v, float* to) { _mm256_storeu_ps(to, v); }
inline void store8(__m256 v, f16* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store8(__m256 v, bf16* to) {
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
void narrow(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) store8(_mm256_loadu_ps(from + i), to + i);
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

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels{6, micro_for, pack_columns_any, pack_rows_any, widen_any, narrow_any};
  return kernels;
}

}  // namespace aloft::matmul_detail
