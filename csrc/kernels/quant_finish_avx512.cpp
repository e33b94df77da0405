#pragma GCC target("avx512bf16")
#include <immintrin.h>

#include <type_traits>

#include "kernels/half.h"
#include "kernels/quant_isa.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace aloft::quant_detail {
namespace {

inline __mmask16 first(int64_t n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << n) - 1); }

// Some groups at a time: their scales stay in registers, sums are read and written once.
template <int kGroups, bool kZero>
void combine_groups(const GroupSums& from, int64_t g, float* sums, int64_t width, int64_t rows, int64_t n, bool fresh) {
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 m = first(n - j);
    __m512 factor[kGroups], offset[kGroups];
#pragma GCC unroll 4
    for (int i = 0; i < kGroups; ++i) {
      const float* scale = from.scale + (g + i) * from.scale_group;
      factor[i] = from.step ? _mm512_maskz_loadu_ps(m, scale + j) : _mm512_set1_ps(*scale);
      if (kZero) offset[i] = _mm512_maskz_loadu_ps(m, from.zero + (g + i) * from.zero_group + j);
    }
    const int32_t* acc = from.acc + g * from.acc_group + j;
    float* to = sums + j;
    for (int64_t r = 0; r < rows; ++r, acc += width, to += width) {
      __m512 total = _mm512_setzero_ps();
      if (!fresh) total = _mm512_loadu_ps(to);
#pragma GCC unroll 4
      for (int i = 0; i < kGroups; ++i) {
        __m512 f = _mm512_cvtepi32_ps(_mm512_loadu_si512(acc + i * from.acc_group));
        if (kZero) {
          const float a_sum = static_cast<float>(from.a_sums[(g + i) * from.a_sums_group + r]);
          f = _mm512_sub_ps(f, _mm512_mul_ps(offset[i], _mm512_set1_ps(a_sum)));
        }
        f = _mm512_mul_ps(f, factor[i]);
        total = i == 0 && fresh ? f : _mm512_add_ps(total, f);
      }
      _mm512_storeu_ps(to, total);
    }
  }
}

void combine(const GroupSums& from, float* sums, int64_t width, int64_t rows, int64_t n, bool fresh) {
  const auto run = [&](auto zero) {
    constexpr bool kZero = decltype(zero)::value;
    int64_t g = 0;
    for (; g + 4 <= from.groups; g += 4) combine_groups<4, kZero>(from, g, sums, width, rows, n, fresh && g == 0);
    for (; g + 2 <= from.groups; g += 2) combine_groups<2, kZero>(from, g, sums, width, rows, n, fresh && g == 0);
    if (g < from.groups) combine_groups<1, kZero>(from, g, sums, width, rows, n, fresh && g == 0);
  };
  from.zero ? run(std::true_type()) : run(std::false_type());
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

// Where no value is denormal, which the instruction takes for zero. It comes with the tiles that ask for it.
inline __m512i rounded_normal(__m512 a, __m512 b) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)); }

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

// Whole vectors of kVectors times 16 columns, nothing absent to be asked for in each row.
enum class Store { Exact, Normal, NormalStreamed };  // see Target; the others are for bf16

template <class T, int kVectors, bool kBias, bool kSums, Store kStore>
void store_whole(const QuantMatmul& q, int64_t row0, int64_t rows, int64_t n0, const int32_t* acc, const float* sums,
                 int64_t width, const float* scales, const Target& target) {
  T* to = static_cast<T*>(target.data);
  const float one = 1.f, *row = q.row_scale ? q.row_scale + row0 : &one;
  const int64_t row_step = q.row_scale ? 1 : 0, stride = target.stride;
  __m512 scale[kVectors], bias[kVectors];
  __m512i integers[kVectors];
#pragma GCC unroll 2
  for (int h = 0; h < kVectors; ++h) {
    scale[h] = !scales        ? _mm512_set1_ps(1.f)
               : q.scale_step ? _mm512_loadu_ps(scales + 16 * h)
                              : _mm512_set1_ps(*scales);
    integers[h] = q.integer_bias ? _mm512_loadu_si512(q.integer_bias + n0 + 16 * h) : _mm512_setzero_si512();
    bias[h] = kBias ? _mm512_loadu_ps(q.bias + n0 + 16 * h) : _mm512_setzero_ps();
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < rows; ++r, to += stride, row += row_step) {
    const __m512 of_row = _mm512_set1_ps(*row);
    __m512 f[2];
#pragma GCC unroll 2
    for (int h = 0; h < kVectors; ++h) {
      const int64_t from = r * width + 16 * h;
      f[h] = kSums ? _mm512_loadu_ps(sums + from)
                   : _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_loadu_si512(acc + from), integers[h])),
                                   scale[h]);
      f[h] = _mm512_mul_ps(f[h], of_row);
      if (kBias) f[h] = _mm512_add_ps(f[h], bias[h]);
    }
    if constexpr (kVectors == 1) {
      put(to, 0xffff, f[0]);
    } else if constexpr (kStore == Store::Exact) {
      put_pair(to, f[0], f[1]);
    } else if constexpr (kStore == Store::Normal) {
      _mm512_storeu_si512(to, rounded_normal(f[0], f[1]));
    } else {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), rounded_normal(f[0], f[1]));
    }
  }
}

template <class T, int kVectors, Store kStore>
void store_whole(const QuantMatmul& q, int64_t row0, int64_t rows, int64_t n0, const int32_t* acc, const float* sums,
                 int64_t width, const float* scales, const Target& target) {
  const auto run =
      q.bias ? sums ? store_whole<T, kVectors, true, true, kStore> : store_whole<T, kVectors, true, false, kStore>
      : sums ? store_whole<T, kVectors, false, true, kStore>
             : store_whole<T, kVectors, false, false, kStore>;
  run(q, row0, rows, n0, acc, sums, width, scales, target);
}

void store(const QuantMatmul& q, int64_t row0, int64_t rows, int64_t n0, int64_t n, const int32_t* acc,
           const float* sums, int64_t width, const float* scale, const Target& to) {
  const auto floats = [&](auto kind) {
    using T = decltype(kind);
    if (n == 32 || n == 16) {
      auto whole = n == 16 ? store_whole<T, 1, Store::Exact> : store_whole<T, 2, Store::Exact>;
      if constexpr (std::is_same_v<T, bf16>) {
        if (n == 32 && to.normal) {
          whole = to.streamed ? store_whole<T, 2, Store::NormalStreamed> : store_whole<T, 2, Store::Normal>;
        }
      }
      return whole(q, row0, rows, n0, acc, sums, width, scale, to);
    }
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
