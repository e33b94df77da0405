// A unit of compact weights (kernels/compact.h) to lines of 64 bytes, in AVX-512.
#pragma once
#include <immintrin.h>

#include "kernels/compact.h"

namespace aloft::compact {
namespace {

inline __m512i table_of(const Weights& w) { return _mm512_loadu_si512(w.header->exponents); }

// Calls each(line, 32 values) for the 16 lines. `later`: as many bytes, fetched into the first-level cache.
template <class F>
inline __attribute__((always_inline)) void each_line(const unsigned char* unit, __m512i table,
                                                     const unsigned char* later, F&& each) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(kSignAndMantissa));
  constexpr int kOrMasked = 0xf8;  // a | (b & c)
  const auto line = [&](__m512i numbers, __m512i rest) {
    return _mm512_ternarylogic_epi32(_mm512_permutexvar_epi16(numbers, table), rest, mask, kOrMasked);
  };
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    const unsigned char *from = unit + g * kGroupBytes, *next = later + g * kGroupBytes;
    for (int i = 0; i < 3; ++i) _mm_prefetch(reinterpret_cast<const char*>(next + 64 * i), _MM_HINT_T0);
    const __m512i numbers = _mm512_loadu_si512(from);
    const __m512i first = _mm512_loadu_si512(from + 64), second = _mm512_loadu_si512(from + 128);
    each(4 * g, line(numbers, first));
    each(4 * g + 1, line(_mm512_srli_epi16(numbers, 4), _mm512_ror_epi32(first, 8)));
    each(4 * g + 2, line(_mm512_srli_epi16(numbers, 8), second));
    each(4 * g + 3, line(_mm512_srli_epi16(numbers, 12), _mm512_ror_epi32(second, 8)));
  }
}

// to[line * 32 + word].
inline void lines_of(const unsigned char* unit, __m512i table, const unsigned char* later, bf16* to) {
  each_line(unit, table, later, [to](int line, __m512i values) { _mm512_store_si512(to + line * 32, values); });
}

}  // namespace
}  // namespace aloft::compact
