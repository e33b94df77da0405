// The first greatest of a line of 16-bit floats, by their bits: 32 at once, in one pass that remembers the block.
#include <immintrin.h>

#include "kernels/lines.h"

namespace aloft {
extern const LineKernels kLinesAvx2[3];
extern const LineKernels kLinesAvx512[2];

namespace {

constexpr int64_t kWidth = 32, kBlock = 32 * kWidth;

// Integers in the order of the numbers, but that -0 comes before 0 and NaN anywhere.
inline __m512i keys(__m512i x) {
  return _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi16(x, 15), _mm512_set1_epi16(0x7fff)));
}

int16_t greatest_of(__m512i x) {
  alignas(64) int16_t each[kWidth];
  _mm512_store_si512(each, x);
  int16_t most = each[0];
  for (int i = 1; i < kWidth; ++i) most = each[i] > most ? each[i] : most;
  return most;
}

// kInfinity: its bits. Lines with NaN, and such whose greatest is a zero of either sign, go the long way.
template <int kType, int16_t kInfinity>
int64_t first_extreme(const void* line, int64_t n, bool greatest) {
  const auto& other = kLinesAvx2[kType].first_extreme;
  if (!greatest || n < kWidth) return other(line, n, greatest);
  const auto* x = static_cast<const int16_t*>(line);
  const __m512i size = _mm512_set1_epi16(0x7fff);
  __m512i best = _mm512_set1_epi16(INT16_MIN), sizes[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  int64_t at = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    // The last vector of the line may overlap the one before.
    const int64_t end = n - block < kBlock ? n : block + kBlock;
    __m512i most[2] = {best, best};
    int64_t i = block;
    for (; i + 2 * kWidth <= end; i += 2 * kWidth) {
      const __m512i a = _mm512_loadu_si512(x + i), b = _mm512_loadu_si512(x + i + kWidth);
      most[0] = _mm512_max_epi16(most[0], keys(a)), most[1] = _mm512_max_epi16(most[1], keys(b));
      sizes[0] = _mm512_max_epi16(sizes[0], _mm512_and_si512(a, size));
      sizes[1] = _mm512_max_epi16(sizes[1], _mm512_and_si512(b, size));
    }
    for (; i < end; i += kWidth) {
      const __m512i a = _mm512_loadu_si512(x + (i + kWidth <= n ? i : n - kWidth));
      most[0] = _mm512_max_epi16(most[0], keys(a));
      sizes[0] = _mm512_max_epi16(sizes[0], _mm512_and_si512(a, size));
    }
    most[0] = _mm512_max_epi16(most[0], most[1]);
    if (_mm512_cmpgt_epi16_mask(most[0], best)) {
      best = _mm512_set1_epi16(greatest_of(most[0]));
      at = block;
    }
  }
  const int16_t top = greatest_of(best);
  if (greatest_of(_mm512_max_epi16(sizes[0], sizes[1])) > kInfinity || top == 0 || top == -1) {
    return other(line, n, greatest);
  }
  for (int64_t i = at;; i += kWidth) {
    if (i + kWidth > n) i = n - kWidth;  // what it sees again is not equal
    const __mmask32 equal = _mm512_cmpeq_epi16_mask(keys(_mm512_loadu_si512(x + i)), best);
    if (equal) return i + __builtin_ctz(equal);
  }
}

template <int kType>
int64_t skip_worse(const void* line, int64_t i, int64_t n, float bound, bool descending) {
  return kLinesAvx2[kType].skip_worse(line, i, n, bound, descending);
}

}  // namespace

const LineKernels kLinesAvx512[2] = {{first_extreme<1, 0x7c00>, skip_worse<1>},
                                     {first_extreme<2, 0x7f80>, skip_worse<2>}};

}  // namespace aloft
