// A few rows times weights that are read once: no packing in between. AVX-512 with VNNI and VBMI.
//
// Blocking: up to four rows x 32 columns of int8 (64 of int4), k in the inner loop, all sums in registers: rows x 2
// panels x 2 chains for int8, rows x 4 for int4. Four lines of 32 bytes (four values of k) are two registers; one
// permutation each brings the four values of a column side by side, as vpdpbusd wants them. Memory is the limit: each
// line is read once, kAhead bytes further are fetched meanwhile, and nothing is written but the sums of a group.
#pragma once
#include "kernels/quant_pack512_impl.h"

namespace aloft::quant_detail {
namespace {

inline __m512i four_bytes(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

constexpr int64_t kAhead = 2048;  // bytes fetched before they are wanted: across pages, where hardware stops

template <bool kStrided>
inline void four_lines(const uint8_t* from, int64_t step, __m512i* a, __m512i* b) {
  if (kStrided) {
    *a = two_lines(from, from + step), *b = two_lines(from + 2 * step, from + 3 * step);
  } else {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead + 64, _MM_HINT_T0);
    *a = _mm512_loadu_si512(from), *b = _mm512_loadu_si512(from + 64);
  }
}

// 32 columns of int8, lines of 32 bytes `step` apart. sums: of the activations.
template <int Rows, bool kStrided>
void direct_bytes(const int8_t* a, int64_t a_stride, const uint8_t* from, int64_t step, int64_t length,
                  const int32_t* sums, int32_t* acc, int64_t acc_stride) {
  const Interleave order;
  const __m512i flip = _mm512_set1_epi8(-128);
  __m512i sum[2][Rows][2];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    sum[0][r][0] = sum[0][r][1] = _mm512_set1_epi32(-128 * sums[r]);
    sum[1][r][0] = sum[1][r][1] = _mm512_setzero_si512();
  }
  const auto lines = [&](int c, int64_t k) __attribute__((always_inline)) {
    __m512i x, y;
    four_lines<kStrided>(from + k * step, step, &x, &y);
    x = _mm512_xor_si512(x, flip), y = _mm512_xor_si512(y, flip);
    const __m512i low = _mm512_permutex2var_epi8(x, order.low, y), high = _mm512_permutex2var_epi8(x, order.high, y);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512i v = four_bytes(a + r * a_stride + k);
      sum[c][r][0] = _mm512_dpbusd_epi32(sum[c][r][0], low, v);
      sum[c][r][1] = _mm512_dpbusd_epi32(sum[c][r][1], high, v);
    }
  };
  int64_t k = 0;
  for (; k + 8 <= length; k += 8) {
    lines(0, k);
    lines(1, k + 4);
  }
  for (; k < length; k += 4) lines(0, k);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    for (int p = 0; p < 2; ++p) {
      _mm512_storeu_si512(acc + r * acc_stride + p * kColumns, _mm512_add_epi32(sum[0][r][p], sum[1][r][p]));
    }
  }
}

// 64 columns of int4: even and odd ones are summed apart.
template <int Rows, bool kStrided>
void direct_nibbles(const int8_t* a, int64_t a_stride, const uint8_t* from, int64_t step, int64_t length,
                    const int32_t* sums, int32_t* acc, int64_t acc_stride) {
  const Interleave order;
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x88)), mask = _mm512_set1_epi8(15);
  __m512i sum[Rows][4];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    for (int p = 0; p < 4; ++p) sum[r][p] = _mm512_set1_epi32(-8 * sums[r]);
  }
  for (int64_t k = 0; k < length; k += 4, from += 4 * step) {
    __m512i x, y;
    four_lines<kStrided>(from, step, &x, &y);
    x = _mm512_xor_si512(x, flip), y = _mm512_xor_si512(y, flip);
    const __m512i low = _mm512_permutex2var_epi8(x, order.low, y), high = _mm512_permutex2var_epi8(x, order.high, y);
    const __m512i w[4] = {_mm512_and_si512(low, mask), _mm512_and_si512(_mm512_srli_epi16(low, 4), mask),
                          _mm512_and_si512(high, mask), _mm512_and_si512(_mm512_srli_epi16(high, 4), mask)};
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512i v = four_bytes(a + r * a_stride + k);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) sum[r][p] = _mm512_dpbusd_epi32(sum[r][p], w[p], v);
    }
  }
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    for (int h = 0; h < 2; ++h) {
      int32_t* to = acc + r * acc_stride + 2 * h * kColumns;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi32(sum[r][2 * h], first, sum[r][2 * h + 1]));
      _mm512_storeu_si512(to + kColumns, _mm512_permutex2var_epi32(sum[r][2 * h], second, sum[r][2 * h + 1]));
    }
  }
}

template <int Rows>
void direct_rows(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t length, const int8_t* a,
                 int64_t a_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride) {
  const bool in_panels = w.layout == QuantLayout::Panels;
  const int64_t step = in_panels ? w.line : w.stride;
  const bool strided = step != 32;
  if (w.bits == 8) {
    const uint8_t* from = run_at<8>(w, in_panels, k0, n0);
    (strided ? direct_bytes<Rows, true> : direct_bytes<Rows, false>)(a, a_stride, from, step, length, sums, acc,
                                                                     acc_stride);
  } else {
    const uint8_t* from = run_at<4>(w, in_panels, k0, n0);
    (strided ? direct_nibbles<Rows, true> : direct_nibbles<Rows, false>)(a, a_stride, from, step, length, sums, acc,
                                                                         acc_stride);
  }
}

// See QuantTiles::direct.
bool direct(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t k, int64_t group,
            const int8_t* a, int64_t a_stride, int64_t rows, const int32_t* sums, int64_t sums_group, int32_t* acc,
            int64_t acc_stride, int64_t acc_group) {
  const int wide = w.bits == 4 ? 4 : 2;
  const bool in_panels = w.layout == QuantLayout::Panels;
  if (!in_panels && (w.layout != QuantLayout::Cols || n0 + wide * kColumns > n || k % 4)) return false;
  if (rows > 4) return false;
  // A panel's lines hold all its columns, but a block may end before them: acc has room for whole blocks.
  const auto run = rows == 1   ? direct_rows<1>
                   : rows == 2 ? direct_rows<2>
                   : rows == 3 ? direct_rows<3>
                               : direct_rows<4>;
  for (int64_t at = 0; at < k; at += group, acc += acc_group, sums += sums_group) {
    run(w, n, n0, panels, k0 + at, k - at < group ? k - at : group, a + at, a_stride, sums, acc, acc_stride);
  }
  return true;
}

}  // namespace
}  // namespace aloft::quant_detail
