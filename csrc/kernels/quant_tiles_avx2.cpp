// AVX2 has no exact product of signed bytes: int8 weights are widened to 16 bits (vpmaddwd: two products of at most
// 2^14 each, exact in 32 bits). int4 weights + 8 are unsigned nibbles, for which vpmaddubsw is exact: at most
// 15 * 128 * 2 = 3840 a pair, so eight of them fit 16 bits (30720), then one vpmaddwd: twice the rate of int8.
//
// Blocking: the weights of a block have been packed for all rows (quant_matmul.cpp): a line of 64 bytes is four values
// of k of the 16 columns of a panel. Three rows x one panel at a time, k in the inner loop: 12 sums of int8 in the 16
// registers (six and six 16-bit ones of int4), each line loaded once for the three rows, whose four bytes are
// broadcast. A run of k of a panel (32 KiB at most) stays in the first level while the rows go by.
#include <cstring>

#include "kernels/quant_pack_impl.h"

namespace aloft::quant_detail {
namespace {

inline int32_t four(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// [8 sums of even and odd pairs of k of 4 columns] x 4 -> 16 columns.
inline void store_pairs(const __m256i* v, int32_t* to) {
  for (int h = 0; h < 2; ++h) {
    const __m256i s = _mm256_hadd_epi32(v[2 * h], v[2 * h + 1]);  // columns 0 1 4 5 | 2 3 6 7
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * h), _mm256_permute4x64_epi64(s, 0xd8));
  }
}

template <int Rows>
void bytes(const int8_t* a, int64_t a_stride, const uint8_t* b, int64_t length, const int32_t* start, int32_t* acc,
           int64_t acc_stride, bool fresh) {
  __m256i sum[Rows][4];
  for (int r = 0; r < Rows; ++r) {
    for (int q = 0; q < 4; ++q) sum[r][q] = _mm256_setzero_si256();
  }
  for (int64_t k = 0; k < length; k += 4, b += 64) {
    __m256i x[Rows];
    for (int r = 0; r < Rows; ++r) x[r] = _mm256_cvtepi8_epi16(_mm_set1_epi32(four(a + r * a_stride + k)));
    for (int q = 0; q < 4; ++q) {
      const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 16 * q)));
      for (int r = 0; r < Rows; ++r) sum[r][q] = _mm256_add_epi32(sum[r][q], _mm256_madd_epi16(w, x[r]));
    }
  }
  for (int r = 0; r < Rows; ++r) {
    int32_t part[kColumns], *to = acc + r * acc_stride;
    store_pairs(sum[r], part);
    for (int j = 0; j < kColumns; ++j) to[j] = (fresh ? start[r] : to[j]) + part[j];
  }
}

template <int Rows>
void nibbles(const int8_t* a, int64_t a_stride, const uint8_t* b, int64_t length, const int32_t* start, int32_t* acc,
             int64_t acc_stride, bool fresh) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[Rows][2];
  for (int r = 0; r < Rows; ++r) {
    for (int h = 0; h < 2; ++h) {
      __m256i* from = reinterpret_cast<__m256i*>(acc + r * acc_stride + 8 * h);
      sum[r][h] = fresh ? _mm256_set1_epi32(start[r]) : _mm256_loadu_si256(from);
    }
  }
  for (int64_t k0 = 0; k0 < length; k0 += 32) {
    const int64_t end = k0 + 32 < length ? k0 + 32 : length;
    __m256i small[Rows][2];
    for (int r = 0; r < Rows; ++r) small[r][0] = small[r][1] = _mm256_setzero_si256();
    for (int64_t k = k0; k < end; k += 4, b += 64) {
      const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
      const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 32));
      for (int r = 0; r < Rows; ++r) {
        const __m256i x = _mm256_set1_epi32(four(a + r * a_stride + k));
        small[r][0] = _mm256_add_epi16(small[r][0], _mm256_maddubs_epi16(w0, x));
        small[r][1] = _mm256_add_epi16(small[r][1], _mm256_maddubs_epi16(w1, x));
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int h = 0; h < 2; ++h) sum[r][h] = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(small[r][h], ones));
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int h = 0; h < 2; ++h)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + r * acc_stride + 8 * h), sum[r][h]);
  }
}

using Micro = void (*)(const int8_t*, int64_t, const uint8_t*, int64_t, const int32_t*, int32_t*, int64_t, bool);

template <bool kNibbles>
void multiply(const int8_t* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
              int64_t length, const int32_t* start, int32_t* acc, int64_t acc_stride, bool fresh) {
  constexpr Micro kMicros[] = {nullptr, kNibbles ? nibbles<1> : bytes<1>, kNibbles ? nibbles<2> : bytes<2>,
                               kNibbles ? nibbles<3> : bytes<3>};
  for (int p = 0; p < panels; ++p) {
    for (int64_t r = 0; r < rows; r += 3) {
      kMicros[rows - r < 3 ? rows - r : 3](a + r * a_stride, a_stride, b + p * panel_stride, length, start + r,
                                           acc + r * acc_stride + p * kColumns, acc_stride, fresh);
    }
  }
}

}  // namespace

const QuantTiles& avx2_tiles(int bits) {
  static const QuantTiles eight = {0, 4, pack_panels<0, 4>, multiply<false>};
  static const QuantTiles four_bits = {8, 4, pack_panels<8, 4>, multiply<true>};
  return bits == 4 ? four_bits : eight;
}

}  // namespace aloft::quant_detail
