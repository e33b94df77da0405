// vpdpbusd multiplies unsigned by signed bytes and adds four products in 32 bits without saturation: weights + 128
// are the unsigned ones, and 128 times the sum of the activations is taken off beforehand. Sums may wrap on the way,
// the result fits.
//
// Blocking: the weights of a block have been packed for all rows (quant_matmul.cpp): a line of 64 bytes is four values
// of k of the 16 columns of a panel, one register. Up to kTallest rows x two panels at a time, k in the inner loop: 24
// sums in the 32 registers, two lines loaded for them, and one broadcast of four bytes of each row.
// Rows are divided evenly among tiles. Few rows have several chains of sums each, so that they do not wait for the
// instruction's latency. Weights that are used once are not packed: quant_direct_avx512.h, quant_row_avx512.h.
#pragma GCC target("avx512vnni,avx512vbmi")
#include <cstring>

#include "kernels/quant_direct_avx512.h"
#include "kernels/quant_row_avx512.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace aloft::quant_detail {
namespace {

inline __m512i four(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Chains: independent sums of every Chains-th line, so that few rows do not wait for the latency of one chain.
template <int Rows, int Panels, int Chains>
void micro(const int8_t* a, int64_t a_stride, const uint8_t* b, int64_t panel_stride, int64_t length,
           const int32_t* start, int32_t* acc, int64_t acc_stride, bool fresh) {
  __m512i sum[Chains][Rows][Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      sum[0][r][p] = fresh ? _mm512_set1_epi32(start[r]) : _mm512_loadu_si512(acc + r * acc_stride + p * kColumns);
#pragma GCC unroll 8
      for (int c = 1; c < Chains; ++c) sum[c][r][p] = _mm512_setzero_si512();
    }
  }
  const auto line = [&](int c, int64_t k) __attribute__((always_inline)) {
    __m512i w[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) w[p] = _mm512_loadu_si512(b + p * panel_stride + k * 16);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const __m512i x = four(a + r * a_stride + k);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[c][r][p] = _mm512_dpbusd_epi32(sum[c][r][p], w[p], x);
    }
  };
  int64_t k = 0;
  for (; k + 4 * Chains <= length; k += 4 * Chains) {
#pragma GCC unroll 8
    for (int c = 0; c < Chains; ++c) line(c, k + 4 * c);
  }
  for (; k < length; k += 4) line(0, k);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      __m512i total = sum[0][r][p];
#pragma GCC unroll 8
      for (int c = 1; c < Chains; ++c) total = _mm512_add_epi32(total, sum[c][r][p]);
      _mm512_storeu_si512(acc + r * acc_stride + p * kColumns, total);
    }
  }
}

using Micro = void (*)(const int8_t*, int64_t, const uint8_t*, int64_t, int64_t, const int32_t*, int32_t*, int64_t,
                       bool);
constexpr int kTallest = 12;

template <int Panels>
Micro pick(int64_t rows) {
  switch (rows) {
    case 1:
      return micro<1, Panels, 4>;
    case 2:
      return micro<2, Panels, 2>;
    case 3:
      return micro<3, Panels, 2>;
    case 4:
      return micro<4, Panels, 2>;
    case 5:
      return micro<5, Panels, 1>;
    case 6:
      return micro<6, Panels, 1>;
    case 7:
      return micro<7, Panels, 1>;
    case 8:
      return micro<8, Panels, 1>;
    case 9:
      return micro<9, Panels, 1>;
    case 10:
      return micro<10, Panels, 1>;
    case 11:
      return micro<11, Panels, 1>;
    default:
      return micro<12, Panels, 1>;
  }
}

void multiply(const int8_t* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
              int64_t length, const int32_t* start, int32_t* acc, int64_t acc_stride, bool fresh) {
  const int64_t tiles = (rows + kTallest - 1) / kTallest, shortest = rows / tiles, taller = rows % tiles;
  for (int p = 0; p < panels; p += 2) {
    const bool two = panels - p >= 2;
    for (int64_t t = 0, r = 0; t < tiles; ++t) {
      const int64_t height = shortest + (t < taller);
      (two ? pick<2> : pick<1>)(height)(a + r * a_stride, a_stride, b + p * panel_stride, panel_stride, length,
                                        start + r, acc + r * acc_stride + p * kColumns, acc_stride, fresh);
      r += height;
    }
  }
}

}  // namespace

const QuantTiles& vnni_tiles() {
  static const QuantTiles tiles = {128, 4, pack512<128, 4>, multiply, direct, row, group_sums};
  return tiles;
}

const QuantTiles& signed_pack512() {
  static const QuantTiles tiles = {0, 4, pack512<0, 4>, nullptr};
  return tiles;
}

}  // namespace aloft::quant_detail
