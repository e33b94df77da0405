// Up to 32 rows times weights that are read once, on tiles: a step of 64 values of k is put in order in the first level
// while the step before is multiplied.
#pragma once
#include "kernels/quant_pack512_impl.h"
#include "kernels/tiles.h"

namespace aloft::quant_detail {
namespace {

constexpr int64_t kRing = 4, kStepBytes = 2048;  // steps that are there; two tiles of weights
constexpr int64_t kFetched = 3072;               // bytes fetched before they are wanted: across pages

// 64 lines of 32 bytes -> two tiles. int8: 32 columns. int4: the even and the odd ones of 32 columns, of the half
// `half` of each line, times 16: the upper four bits of a byte are the nibble, with its sign.
template <int kBits, bool kFetch>
inline void order_step(const uint8_t* from, int64_t step, int half, const Interleave& order, uint8_t* to) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(0xf0));
  const __m512i which = half ? order.high : order.low;
  for (int i = 0; i < 16; ++i, from += 4 * step, to += 64) {
    __m512i x, y;
    if (step == 32) {
      if (kFetch) {
        _mm_prefetch(reinterpret_cast<const char*>(from) + kFetched, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(from) + kFetched + 64, _MM_HINT_T0);
      }
      x = _mm512_loadu_si512(from), y = _mm512_loadu_si512(from + 64);
    } else {
      x = two_lines(from, from + step), y = two_lines(from + 2 * step, from + 3 * step);
    }
    if (kBits == 8) {
      _mm512_store_si512(to, _mm512_permutex2var_epi8(x, order.low, y));
      _mm512_store_si512(to + 1024, _mm512_permutex2var_epi8(x, order.high, y));
    } else {
      const __m512i pairs = _mm512_permutex2var_epi8(x, which, y);
      _mm512_store_si512(to, _mm512_and_si512(_mm512_slli_epi16(pairs, 4), mask));
      _mm512_store_si512(to + 1024, _mm512_and_si512(pairs, mask));
    }
  }
}

template <int kBits, bool kTwoRows, bool kFetch>
void direct_columns(const uint8_t* from, int64_t step, int half, int64_t length, const int8_t* a, int64_t a_stride,
                    int32_t* sums, int64_t sums_stride) {
  alignas(64) uint8_t ring[kRing * kStepBytes];
  const Interleave order;
  const int64_t steps = length / 64;
  const int8_t* below = a + 16 * a_stride;
  _tile_zero(0);
  _tile_zero(1);
  if (kTwoRows) {
    _tile_zero(2);
    _tile_zero(3);
  }
  order_step<kBits, kFetch>(from, step, half, order, ring);
  for (int64_t s = 0; s < steps; ++s, a += 64, below += 64) {
    const uint8_t* b = ring + s % kRing * kStepBytes;
    if (s + 1 < steps) {
      order_step<kBits, kFetch>(from + (s + 1) * 64 * step, step, half, order, ring + (s + 1) % kRing * kStepBytes);
    }
    before_tile_load();
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, a_stride);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + 1024, 64);
    _tile_dpbssd(1, 4, 7);
    if (kTwoRows) {
      _tile_loadd(5, below, a_stride);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }
  const int64_t row = sums_stride * 4;
  _tile_stored(0, sums, row);
  _tile_stored(1, sums + 16, row);
  if (kTwoRows) {
    _tile_stored(2, sums + 16 * sums_stride, row);
    _tile_stored(3, sums + 16 * sums_stride + 16, row);
  }
}

// Up to 16 rows and both halves of int4 lines at once, so that memory is read evenly: sums of [even, odd] columns of
// the first half, then of the second, each 16 wide.
void direct_nibbles(const uint8_t* from, int64_t step, int64_t length, const int8_t* a, int64_t a_stride,
                    int32_t* sums) {
  constexpr int64_t kBytes = 2 * kStepBytes;
  alignas(64) uint8_t ring[kRing * kBytes];
  const Interleave order;
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(0xf0));
  const int64_t steps = length / 64;
  const auto make = [&](int64_t s) {
    const uint8_t* line = from + s * 64 * step;
    uint8_t* to = ring + s % kRing * kBytes;
    for (int i = 0; i < 16; ++i, line += 4 * step, to += 64) {
      __m512i x, y;
      if (step == 32) {
        _mm_prefetch(reinterpret_cast<const char*>(line) + kFetched, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(line) + kFetched + 64, _MM_HINT_T0);
        x = _mm512_loadu_si512(line), y = _mm512_loadu_si512(line + 64);
      } else {
        x = two_lines(line, line + step), y = two_lines(line + 2 * step, line + 3 * step);
      }
      const __m512i low = _mm512_permutex2var_epi8(x, order.low, y), high = _mm512_permutex2var_epi8(x, order.high, y);
      _mm512_store_si512(to, _mm512_and_si512(_mm512_slli_epi16(low, 4), mask));
      _mm512_store_si512(to + 1024, _mm512_and_si512(low, mask));
      _mm512_store_si512(to + 2048, _mm512_and_si512(_mm512_slli_epi16(high, 4), mask));
      _mm512_store_si512(to + 3072, _mm512_and_si512(high, mask));
    }
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  make(0);
  for (int64_t s = 0; s < steps; ++s, a += 64) {
    const uint8_t* b = ring + s % kRing * kBytes;
    if (s + 1 < steps) make(s + 1);
    before_tile_load();
    _tile_loadd(4, a, a_stride);
    _tile_loadd(6, b, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + 1024, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, b + 2048, 64);
    _tile_dpbssd(2, 4, 5);
    _tile_loadd(6, b + 3072, 64);
    _tile_dpbssd(3, 4, 6);
  }
  _tile_stored(0, sums, 256);
  _tile_stored(1, sums + 16, 256);
  _tile_stored(2, sums + 32, 256);
  _tile_stored(3, sums + 48, 256);
}

// See QuantTiles::direct.
bool direct(const QuantWeight& w, int64_t n, int64_t n0, int, int64_t k0, int64_t length, const int8_t* a,
            int64_t a_stride, int64_t rows, const int32_t*, int32_t* acc, int64_t acc_stride) {
  const bool in_panels = w.layout == QuantLayout::Panels;
  const int64_t wide = w.bits == 4 ? 64 : 32;
  if (!in_panels && (w.layout != QuantLayout::Cols || n0 + wide > n)) return false;
  if (rows > 32 || length % 64 || !length) return false;
  const bool two = rows > 16;
  const int first = static_cast<int>(two ? 16 : rows), second = static_cast<int>(rows) - first;
  TileShapes shapes;
  shapes.set(0, first).set(1, first).set(4, first).set(6, 16).set(7, 16);
  if (two) {
    shapes.set(2, second).set(3, second).set(5, second);
  } else {
    shapes.set(2, first).set(3, first).set(5, 16);
  }
  const Tiles tiles(shapes);
  const int64_t step = in_panels ? w.line : w.stride;
  if (w.bits == 8) {
    const auto run = two ? direct_columns<8, true, true> : direct_columns<8, false, true>;
    run(run_at<8>(w, in_panels, k0, n0), step, 0, length, a, a_stride, acc, acc_stride);
    return true;
  }
  const uint8_t* from = run_at<4>(w, in_panels, k0, n0);
  alignas(64) int32_t sums[32 * 32];
  const __m512i even = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(8));
  const auto in_order = [&](const int32_t* pair, int32_t* to) {  // of 32 columns
    const __m512i x = _mm512_srai_epi32(_mm512_load_si512(pair), 4),
                  y = _mm512_srai_epi32(_mm512_load_si512(pair + 16), 4);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32(x, even, y));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi32(x, odd, y));
  };
  if (!two) {
    direct_nibbles(from, step, length, a, a_stride, sums);
    for (int64_t r = 0; r < rows; ++r) {
      in_order(sums + r * 64, acc + r * acc_stride);
      in_order(sums + r * 64 + 32, acc + r * acc_stride + 32);
    }
    return true;
  }
  for (int half = 0; half < 2; ++half) {
    const auto run = half ? direct_columns<4, true, false> : direct_columns<4, true, true>;
    run(from, step, half, length, a, a_stride, sums, 32);
    for (int64_t r = 0; r < rows; ++r) in_order(sums + r * 32, acc + r * acc_stride + 32 * half);
  }
  return true;
}

}  // namespace
}  // namespace aloft::quant_detail
