// Up to 32 rows of int8 times int8 or int4 weights that are read once (decode): memory first.
//
// Blocking: one or two row tiles of 16 (4, 5; read from where they lie) x two panels of 16 columns (6, 7), their sums
// in tiles 0-3, for all of k in steps of 64. A weight tile wants four values of k of a column side by side, FRACTAL_NZ
// has lines of 32 bytes, one k each: four lines are two registers, one byte permutation makes a row of each of the two
// tiles. Step s + 1 is put in order into a ring in the first level while step s multiplies, the memory kFetched further
// on is fetched meanwhile, and nothing is kept: each weight is read once, by one thread. At a group's end (k % 32 == 0:
// half a step is filled up with zeros) the sums are stored and begin anew. int4: a byte holds two columns; both
// nibbles become signed bytes times 16 by one shift and one mask, even columns in one tile and odd ones in the other.
// The 64 columns of a line are four tiles of weights, one after the other, where one row tile leaves tiles for their
// sums (so that lines are read evenly); with two, each half of the line is a pass of its own, the second from the
// caches. put_in_order() takes the 16 off and zips even and odd columns.
#pragma once
#include <algorithm>

#include "kernels/quant_pack512_impl.h"
#include "kernels/tiles.h"

namespace aloft::quant_detail {
namespace {

constexpr int64_t kStep = 64, kRing = 4;  // values of k; steps that are there
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kFetched = 3072;  // bytes fetched before they are wanted: across pages
constexpr int kAll = -1;            // both halves of the columns

// Steps of k in order: groups are cut into steps, the last of each may be half a step (with zeros behind).
struct Steps {
  int64_t k, group;
  int64_t at = 0, end = 0;  // of the current step; of its group
  Steps(int64_t all, int64_t values) : k(all), group(values), end(std::min(all, values)) {}
  bool more() const { return at < k; }
  int64_t length() const { return std::min(kStep, end - at); }
  bool last() const { return end - at <= kStep; }  // of a group
  void next() {
    at += length();
    if (at == end) end = std::min(k, end + group);
  }
};

// Lines of 32 bytes -> tiles. int8: 32 columns. int4: the even and the odd ones of 32 columns, of the half `half` of
// each line or of one and the other, times 16: the upper four bits of a byte are the nibble, with its sign.
template <int kBits, bool kFetch>
inline void order_lines(const uint8_t* from, int64_t step, int64_t count, int half, const Interleave& order,
                        uint8_t* to) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(0xf0));
  const auto put = [&](__m512i pairs, uint8_t* p) __attribute__((always_inline)) {
    _mm512_store_si512(p, _mm512_and_si512(_mm512_slli_epi16(pairs, 4), mask));
    _mm512_store_si512(p + kTileBytes, _mm512_and_si512(pairs, mask));
  };
  const uint8_t* end = to + 16 * count;
  for (; to < end; from += 4 * step, to += 64) {
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
      _mm512_store_si512(to + kTileBytes, _mm512_permutex2var_epi8(x, order.high, y));
    } else if (half == kAll) {
      put(_mm512_permutex2var_epi8(x, order.low, y), to);
      put(_mm512_permutex2var_epi8(x, order.high, y), to + 2 * kTileBytes);
    } else {
      put(_mm512_permutex2var_epi8(x, half ? order.high : order.low, y), to);
    }
  }
}

template <int kBits, bool kFetch, int kTiles>
inline void order_step(const uint8_t* from, int64_t step, const Steps& s, int half, const Interleave& order,
                       uint8_t* to) {
  const uint8_t* lines = from + s.at * step;
  if (s.length() == kStep) return order_lines<kBits, kFetch>(lines, step, kStep, half, order, to);
  order_lines<kBits, kFetch>(lines, step, s.length(), half, order, to);
  for (int t = 0; t < kTiles; ++t) {
    for (int64_t i = s.length() * 16; i < kTileBytes; i += 64) {
      _mm512_store_si512(to + t * kTileBytes + i, _mm512_setzero_si512());
    }
  }
}

// Sums of a group go to `sums`, `sums_stride` values between rows, those of the next one `group_stride` behind.
struct Sums {
  int32_t* data;
  int64_t stride, group_stride;
};

// Two tiles of weights; one or two of rows.
template <int kBits, bool kTwoRows, bool kFetch>
void direct_columns(const uint8_t* from, int64_t step, int half, Steps now, const int8_t* a, int64_t a_stride,
                    Sums sums) {
  constexpr int64_t kBytes = 2 * kTileBytes;
  alignas(64) uint8_t ring[kRing * kBytes];
  const Interleave order;
  const int64_t row = sums.stride * 4;
  Steps made = now;
  bool fresh = true;
  order_step<kBits, kFetch, 2>(from, step, made, half, order, ring);
  made.next();
  for (int64_t s = 0; now.more(); ++s, now.next()) {
    const uint8_t* b = ring + s % kRing * kBytes;
    if (made.more()) {
      order_step<kBits, kFetch, 2>(from, step, made, half, order, ring + (s + 1) % kRing * kBytes);
      made.next();
    }
    if (fresh) {
      _tile_zero(0);
      _tile_zero(1);
      if (kTwoRows) {
        _tile_zero(2);
        _tile_zero(3);
      }
    }
    before_tile_load();
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a + now.at, a_stride);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + kTileBytes, 64);
    _tile_dpbssd(1, 4, 7);
    if (kTwoRows) {
      _tile_loadd(5, a + 16 * a_stride + now.at, a_stride);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
    fresh = now.last();
    if (!fresh) continue;
    _tile_stored(0, sums.data, row);
    _tile_stored(1, sums.data + 16, row);
    if (kTwoRows) {
      _tile_stored(2, sums.data + 16 * sums.stride, row);
      _tile_stored(3, sums.data + 16 * sums.stride + 16, row);
    }
    sums.data += sums.group_stride;
  }
}

// Up to 16 rows and both halves of int4 lines at once, so that memory is read evenly: sums of [even, odd] columns of
// the first half, then of the second.
void direct_nibbles(const uint8_t* from, int64_t step, Steps now, const int8_t* a, int64_t a_stride, Sums sums) {
  constexpr int64_t kBytes = 4 * kTileBytes;
  alignas(64) uint8_t ring[kRing * kBytes];
  const Interleave order;
  const int64_t row = sums.stride * 4;
  Steps made = now;
  bool fresh = true;
  order_step<4, true, 4>(from, step, made, kAll, order, ring);
  made.next();
  for (int64_t s = 0; now.more(); ++s, now.next()) {
    const uint8_t* b = ring + s % kRing * kBytes;
    if (made.more()) {
      order_step<4, true, 4>(from, step, made, kAll, order, ring + (s + 1) % kRing * kBytes);
      made.next();
    }
    if (fresh) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    before_tile_load();
    _tile_loadd(4, a + now.at, a_stride);
    _tile_loadd(6, b, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + kTileBytes, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, b + 2 * kTileBytes, 64);
    _tile_dpbssd(2, 4, 5);
    _tile_loadd(6, b + 3 * kTileBytes, 64);
    _tile_dpbssd(3, 4, 6);
    fresh = now.last();
    if (!fresh) continue;
    _tile_stored(0, sums.data, row);
    _tile_stored(1, sums.data + 16, row);
    _tile_stored(2, sums.data + 32, row);
    _tile_stored(3, sums.data + 48, row);
    sums.data += sums.group_stride;
  }
}

// 32 sums of even, then of odd columns, times 16 -> in order.
inline void put_in_order(int32_t* pair) {
  const __m512i even = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(8));
  const __m512i x = _mm512_srai_epi32(_mm512_loadu_si512(pair), 4);
  const __m512i y = _mm512_srai_epi32(_mm512_loadu_si512(pair + 16), 4);
  _mm512_storeu_si512(pair, _mm512_permutex2var_epi32(x, even, y));
  _mm512_storeu_si512(pair + 16, _mm512_permutex2var_epi32(x, odd, y));
}

// See QuantTiles::direct.
bool direct(const QuantWeight& w, int64_t n, int64_t n0, int, int64_t k0, int64_t k, int64_t group, const int8_t* a,
            int64_t a_stride, int64_t rows, const int32_t*, int64_t, int32_t* acc, int64_t acc_stride,
            int64_t acc_group) {
  const bool in_panels = w.layout == QuantLayout::Panels;
  const int64_t wide = w.bits == 4 ? 64 : 32;
  if (!in_panels && (w.layout != QuantLayout::Cols || n0 + wide > n)) return false;
  if (rows > 32 || k % 32 || (group < k && group % 32)) return false;
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
  const Steps steps(k, group);
  const Sums sums = {acc, acc_stride, acc_group};
  if (w.bits == 8) {
    const auto run = two ? direct_columns<8, true, true> : direct_columns<8, false, true>;
    run(run_at<8>(w, in_panels, k0, n0), step, 0, steps, a, a_stride, sums);
    return true;
  }
  const uint8_t* from = run_at<4>(w, in_panels, k0, n0);
  if (two) {
    direct_columns<4, true, true>(from, step, 0, steps, a, a_stride, sums);
    direct_columns<4, true, false>(from, step, 1, steps, a, a_stride, {acc + 32, acc_stride, acc_group});
  } else {
    direct_nibbles(from, step, steps, a, a_stride, sums);
  }
  for (int64_t done = 0; done < k; done += group, acc += acc_group) {
    for (int64_t r = 0; r < rows; ++r) {
      put_in_order(acc + r * acc_stride);
      put_in_order(acc + r * acc_stride + 32);
    }
  }
  return true;
}

}  // namespace
}  // namespace aloft::quant_detail
