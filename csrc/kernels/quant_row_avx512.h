// One row times weights that are read once, a panel at a time: all of k, the scales of its groups and their sum in
// registers. AVX-512 with VNNI and VBMI.
//
// Blocking: a panel of 32 columns of int8 (64 of int4), 32 bytes for each k, goes by once from its first line to its
// last: two registers for four values of k, permuted as in quant_direct_avx512.h, 12 instructions for 128 bytes of
// int4. The integer sums of a group become floats in registers when it ends and are added up there; only the finished
// row of a panel is stored. What is read next is known (kernels/shares.h), so fetching goes on across groups and into
// the next panel without a gap.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/quant_pack512_impl.h"

namespace aloft::quant_detail {
namespace {

// Fetched so far before they are wanted, across panels: hardware stops at the end of a page.
constexpr int64_t kRowAhead = 3072;

// Lines k, k + 1 and k + 2, k + 3 of a panel -> dwords of four lines, of bytes 16 * half ... of each.
struct FourLines {
  __m512i low, high;
  static constexpr __mmask64 kSecond = 0xccccccccccccccccu;
  FourLines() {
    alignas(64) uint8_t t[64];
    for (int j = 0; j < 16; ++j) {
      for (int r = 0; r < 4; ++r) t[4 * j + r] = static_cast<uint8_t>(32 * (r % 2) + j);
    }
    low = _mm512_load_si512(t), high = _mm512_add_epi8(low, _mm512_set1_epi8(16));
  }
  static __m512i of(__m512i order, __m512i x, __m512i y) {
    return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(order, x), kSecond, order, y);
  }
};

inline __m512i four_of(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Calls lines(count, ahead) for all lines of a group [k0, k0 + count), what is fetched meanwhile being in one piece:
// kRowAhead bytes further in this panel, or as much from the beginning of the next.
template <class F>
[[gnu::always_inline]] inline void with_ahead(const RowBlock& b, int64_t k0, int64_t count, F&& lines) {
  constexpr int64_t kLine = 32;
  const int64_t here = std::clamp<int64_t>((b.k - kRowAhead / kLine) / 4 * 4 - k0, 0, count);
  const uint8_t* from = b.weights + k0 * kLine;
  if (here > 0) lines(from, k0, here, from + kRowAhead);
  if (here < count) {
    const int64_t k = k0 + here, rest = std::max<int64_t>(0, k + kRowAhead / kLine - b.k);
    lines(b.weights + k * kLine, k, count - here, b.next + rest * kLine);
  }
}

// Sixteen scales of columns j ...
inline __m512 row_scale16(const RowBlock& b, int64_t group, int64_t j) {
  if (b.scale_dtype == DType::F32)
    return _mm512_loadu_ps(static_cast<const float*>(b.scale) + group * b.scale_group + j);
  const int64_t* p = static_cast<const int64_t*>(b.scale) + group * b.scale_group + j;
  const __m512i low = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_castsi512_ps(_mm512_permutex2var_epi32(_mm512_loadu_si512(p), low, _mm512_loadu_si512(p + 8)));
}

// The sums of a group, in the order of memory, go where they belong.
template <int kVectors>
struct RowSums {
  __m512 total[kVectors];

  void add(const RowBlock& b, int64_t group, const __m512i (&sums)[kVectors]) {
    if (!b.scale) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(static_cast<int32_t*>(b.to) + v * kColumns, sums[v]);
      return;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[v]), row_scale16(b, group, v * kColumns));
      total[v] = group == 0 ? f : _mm512_add_ps(total[v], f);
    }
    const int64_t item = b.scale_dtype == DType::F32 ? 4 : 8;
    const char* next = static_cast<const char*>(b.next_scale) + group * b.scale_group * item;
    for (int64_t at = 0; at < kVectors * kColumns * item; at += 64) _mm_prefetch(next + at, _MM_HINT_T0);
  }
  void store(const RowBlock& b) {
    if (!b.scale) return;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(static_cast<float*>(b.to) + v * kColumns, total[v]);
  }
};

// 64 columns of int4. Even columns lie in the lower nibbles, odd ones in the upper: those stay there, sixteen times
// their weight, until the sums of a group are complete.
void row_nibbles(const RowBlock& b) {
  const FourLines order;
  const __m512i low_flip = _mm512_set1_epi8(8), low_mask = _mm512_set1_epi8(15);
  const __m512i high_flip = _mm512_set1_epi8(static_cast<char>(0x80)),
                high_mask = _mm512_set1_epi8(static_cast<char>(0xf0));
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  constexpr int kFlipAndMask = 0x28;  // (a ^ b) & c
  RowSums<4> sums;
  for (int64_t k0 = 0, g = 0; k0 < b.k; k0 += b.group, ++g) {
    __m512i even[2], odd[2];
    even[0] = even[1] = _mm512_set1_epi32(-8 * b.sums[g]);
    odd[0] = odd[1] = _mm512_set1_epi32(-128 * b.sums[g]);
    with_ahead(b, k0, std::min(b.group, b.k - k0),
               [&](const uint8_t* from, int64_t k, int64_t count, const uint8_t* ahead) __attribute__((always_inline)) {
                 for (const int8_t *a = b.a + k, *end = a + count; a < end; a += 4, from += 128, ahead += 128) {
                   _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
                   _mm_prefetch(reinterpret_cast<const char*>(ahead) + 64, _MM_HINT_T0);
                   const __m512i x = _mm512_loadu_si512(from), y = _mm512_loadu_si512(from + 64), v = four_of(a);
                   const __m512i p[2] = {FourLines::of(order.low, x, y), FourLines::of(order.high, x, y)};
#pragma GCC unroll 2
                   for (int h = 0; h < 2; ++h) {
                     even[h] = _mm512_dpbusd_epi32(
                         even[h], _mm512_ternarylogic_epi32(p[h], low_flip, low_mask, kFlipAndMask), v);
                     odd[h] = _mm512_dpbusd_epi32(
                         odd[h], _mm512_ternarylogic_epi32(p[h], high_flip, high_mask, kFlipAndMask), v);
                   }
                 }
               });
    __m512i whole[4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i of_odd = _mm512_srai_epi32(odd[h], 4);
      whole[2 * h] = _mm512_permutex2var_epi32(even[h], first, of_odd);
      whole[2 * h + 1] = _mm512_permutex2var_epi32(even[h], second, of_odd);
    }
    sums.add(b, g, whole);
  }
  sums.store(b);
}

// 32 columns of int8.
void row_bytes(const RowBlock& b) {
  const FourLines order;
  const __m512i flip = _mm512_set1_epi8(-128);
  RowSums<2> sums;
  for (int64_t k0 = 0, g = 0; k0 < b.k; k0 += b.group, ++g) {
    __m512i sum[2][2];
    sum[0][0] = sum[0][1] = _mm512_set1_epi32(-128 * b.sums[g]);
    sum[1][0] = sum[1][1] = _mm512_setzero_si512();
    with_ahead(b, k0, std::min(b.group, b.k - k0),
               [&](const uint8_t* from, int64_t k, int64_t count, const uint8_t* ahead) __attribute__((always_inline)) {
                 const auto four = [&](__m512i(&to)[2], const int8_t* a) __attribute__((always_inline)) {
                   _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
                   _mm_prefetch(reinterpret_cast<const char*>(ahead) + 64, _MM_HINT_T0);
                   const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(from), flip);
                   const __m512i y = _mm512_xor_si512(_mm512_loadu_si512(from + 64), flip);
                   const __m512i v = four_of(a);
                   to[0] = _mm512_dpbusd_epi32(to[0], FourLines::of(order.low, x, y), v);
                   to[1] = _mm512_dpbusd_epi32(to[1], FourLines::of(order.high, x, y), v);
                   from += 128, ahead += 128;
                 };
                 const int8_t *a = b.a + k, *end = a + count;
                 for (; a + 8 <= end; a += 8) {
                   four(sum[0], a);
                   four(sum[1], a + 4);
                 }
                 for (; a < end; a += 4) four(sum[0], a);
               });
    const __m512i whole[2] = {_mm512_add_epi32(sum[0][0], sum[1][0]), _mm512_add_epi32(sum[0][1], sum[1][1])};
    sums.add(b, g, whole);
  }
  sums.store(b);
}

void row(const RowBlock& b) { b.bits == 4 ? row_nibbles(b) : row_bytes(b); }

// Sums of each group of a.
void group_sums(const int8_t* a, int64_t k, int64_t group, int32_t* to, int64_t to_step) {
  const __m512i ones = _mm512_set1_epi8(1);
  for (int64_t k0 = 0; k0 < k; k0 += group, to += to_step) {
    const int64_t end = std::min(k, k0 + group);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = k0; i < end; i += 64) {
      const __mmask64 some = end - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (end - i)) - 1;
      sum = _mm512_dpbusd_epi32(sum, ones, _mm512_maskz_loadu_epi8(some, a + i));
    }
    *to = _mm512_reduce_add_epi32(sum);
  }
}

}  // namespace
}  // namespace aloft::quant_detail
