#include <immintrin.h>

#include "kernels/half.h"
#include "kernels/quant_isa.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace aloft::quant_detail {
namespace {

inline __mmask16 first(int64_t n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << n) - 1); }

void combine(const int32_t* acc, const float* scale, int64_t step, const float* zero, float a_sum, float* sums,
             bool first_group, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 m = first(n - j);
    __m512 f = _mm512_cvtepi32_ps(_mm512_loadu_si512(acc + j));
    if (zero) f = _mm512_sub_ps(f, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, zero + j), _mm512_set1_ps(a_sum)));
    f = _mm512_mul_ps(f, step ? _mm512_maskz_loadu_ps(m, scale + j) : _mm512_set1_ps(*scale));
    if (!first_group) f = _mm512_add_ps(_mm512_loadu_ps(sums + j), f);
    _mm512_storeu_ps(sums + j, f);
  }
}

inline void put(float* to, __mmask16 m, __m512 v) { _mm512_mask_storeu_ps(to, m, v); }
inline void put(f16* to, __mmask16 m, __m512 v) {
  _mm256_mask_storeu_epi16(to, m, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline __m256i narrow(__m512 v) {  // to nearest even; vcvtneps2bf16 would flush denormals
  const __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, high, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(r);
}
inline void put(bf16* to, __mmask16 m, __m512 v) { _mm256_mask_storeu_epi16(to, m, narrow(v)); }

// 32 values that lie side by side, so that whole lines of the output are written at once.
inline void put_pair(float* to, __m512 a, __m512 b) {
  _mm512_storeu_ps(to, a);
  _mm512_storeu_ps(to + 16, b);
}
inline __m512i joined(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
inline void put_pair(f16* to, __m512 a, __m512 b) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm512_storeu_si512(to, joined(_mm512_cvtps_ph(a, kNearest), _mm512_cvtps_ph(b, kNearest)));
}
inline void put_pair(bf16* to, __m512 a, __m512 b) { _mm512_storeu_si512(to, joined(narrow(a), narrow(b))); }

// Multiplying by one where a factor is absent changes nothing; adding zero would (-0), so the bias is asked for.
template <class T, bool kBias>
void store_floats(const QuantMatmul& q, int64_t row0, int64_t rows, int64_t n0, int64_t n, const int32_t* acc,
                  const float* sums, int64_t width, const float* scales, const Target& target) {
  T* out = static_cast<T*>(target.data);
  const __m512 one = _mm512_set1_ps(1.f);
  for (int64_t j = 0; j < n; j += 32) {
    __m512 scale[2] = {one, one}, bias[2];
    __m512i integers[2];
    __mmask16 mask[2];
    for (int h = 0; h < 2; ++h) {
      const int64_t at = n0 + j + 16 * h;
      const __mmask16 m = mask[h] = j + 16 * h < n ? first(n - j - 16 * h) : 0;
      if (!sums && scales) {
        scale[h] = q.scale_step ? _mm512_maskz_loadu_ps(m, scales + j + 16 * h) : _mm512_set1_ps(*scales);
      }
      integers[h] = q.integer_bias ? _mm512_maskz_loadu_epi32(m, q.integer_bias + at) : _mm512_setzero_si512();
      bias[h] = kBias ? _mm512_maskz_loadu_ps(m, q.bias + at) : _mm512_setzero_ps();
    }
    for (int64_t r = 0; r < rows; ++r) {
      __m512 f[2];
      for (int h = 0; h < 2; ++h) {
        const int64_t from = r * width + j + 16 * h;
        if (sums) {
          f[h] = _mm512_maskz_loadu_ps(mask[h], sums + from);
        } else {
          const __m512i v = _mm512_add_epi32(_mm512_maskz_loadu_epi32(mask[h], acc + from), integers[h]);
          f[h] = _mm512_mul_ps(_mm512_cvtepi32_ps(v), scale[h]);
        }
        if (q.row_scale) f[h] = _mm512_mul_ps(f[h], _mm512_set1_ps(q.row_scale[row0 + r]));
        if (kBias) f[h] = _mm512_add_ps(f[h], bias[h]);
      }
      T* to = out + r * target.stride + j;
      if (mask[1] == 0xffff) {
        put_pair(to, f[0], f[1]);
      } else {
        put(to, mask[0], f[0]);
        if (mask[1]) put(to + 16, mask[1], f[1]);
      }
    }
  }
}

void store(const QuantMatmul& q, int64_t row0, int64_t rows, int64_t n0, int64_t n, const int32_t* acc,
           const float* sums, int64_t width, const float* scale, const Target& to) {
  const auto floats = [&](auto kind) {
    using T = decltype(kind);
    const auto run = q.bias ? store_floats<T, true> : store_floats<T, false>;
    run(q, row0, rows, n0, n, acc, sums, width, scale, to);
  };
  switch (to.dtype) {
    case DType::BF16:
      return floats(bf16());
    case DType::F16:
      return floats(f16());
    case DType::F32:
      return floats(float());
    default:
      return kFinishAvx2.store(q, row0, rows, n0, n, acc, sums, width, scale, to);
  }
}

// The floats in the low halves of int64.
void widen(DType type, const void* from, int64_t n, float* to) {
  if (type != DType::I64) return kFinishAvx2.widen(type, from, n, to);
  const int64_t* p = static_cast<const int64_t*>(from);
  for (int64_t i = 0; i < n; i += 8) {
    const __mmask8 m = static_cast<__mmask8>(first(n - i));
    _mm256_mask_storeu_ps(to + i, m, _mm256_castsi256_ps(_mm512_cvtepi64_epi32(_mm512_maskz_loadu_epi64(m, p + i))));
  }
}

}  // namespace

const Finish kFinishAvx512 = {combine, store, widen};

}  // namespace aloft::quant_detail
