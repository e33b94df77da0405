// AMX: one instruction multiplies 16 rows x 64 bytes by 64 bytes x 16 columns into exact 32-bit sums. Blocks of 32 rows
// and 32 columns: four tiles of sums, two of each operand.
//
// Blocking: weights have been packed for all rows (quant_matmul.cpp) as their tiles want them, four values of k of 16
// columns in 64 bytes. Tiles 0-3 are sums, 4 and 5 two times 16 rows of activations, 6 and 7 two panels: four products
// for four loads, k in the inner loop. A block of rows goes over all panels before the next, whose rows are fetched
// meanwhile. Groups end between calls: sums go back to memory and are loaded again where a group continues.
// More than 32 rows in one stream, with packing and finishing beside the products: quant_many.cpp and
// quant_stream_amx.cpp. 5 to 32 rows without packing: quant_direct_amx.h.
#include "kernels/quant_direct_amx.h"

namespace aloft::quant_detail {
namespace {

TileShapes shapes(int64_t rows0, int64_t rows1) {
  TileShapes s;
  s.set(0, static_cast<int>(rows0)).set(1, static_cast<int>(rows0));
  s.set(4, static_cast<int>(rows0)).set(6, 16).set(7, 16);
  if (rows1) s.set(2, static_cast<int>(rows1)).set(3, static_cast<int>(rows1)).set(5, static_cast<int>(rows1));
  return s;
}

// `next`: rows wanted afterwards, fetched meanwhile (32 of them, one line a step), or null.
template <bool kTwoRows, bool kTwoColumns>
void block(const int8_t* a, int64_t a_stride, const uint8_t* b, int64_t panel_stride, int64_t length, int32_t* acc,
           int64_t acc_stride, bool fresh, const int8_t* next) {
  const int64_t step = acc_stride * 4;
  int32_t* below = acc + 16 * acc_stride;
  if (fresh) {
    _tile_zero(0);
    if (kTwoColumns) _tile_zero(1);
    if (kTwoRows) _tile_zero(2);
    if (kTwoRows && kTwoColumns) _tile_zero(3);
  } else {
    _tile_loadd(0, acc, step);
    if (kTwoColumns) _tile_loadd(1, acc + 16, step);
    if (kTwoRows) _tile_loadd(2, below, step);
    if (kTwoRows && kTwoColumns) _tile_loadd(3, below + 16, step);
  }
  for (int64_t k = 0; k < length; k += 64) {
    if (kTwoRows && next) {
      for (int r = 0; r < 32; ++r) _mm_prefetch(reinterpret_cast<const char*>(next + r * a_stride + k), _MM_HINT_T0);
    }
    _tile_loadd(4, a + k, a_stride);
    _tile_loadd(6, b + k * kColumns, 64);
    _tile_dpbssd(0, 4, 6);
    if (kTwoRows) {
      _tile_loadd(5, a + 16 * a_stride + k, a_stride);
      _tile_dpbssd(2, 5, 6);
    }
    if (kTwoColumns) {
      _tile_loadd(7, b + panel_stride + k * kColumns, 64);
      _tile_dpbssd(1, 4, 7);
      if (kTwoRows) _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_stored(0, acc, step);
  if (kTwoColumns) _tile_stored(1, acc + 16, step);
  if (kTwoRows) _tile_stored(2, below, step);
  if (kTwoRows && kTwoColumns) _tile_stored(3, below + 16, step);
}

template <bool kTwoRows>
void columns(const int8_t* a, int64_t a_stride, const uint8_t* b, int64_t panel_stride, int panels, int64_t length,
             int32_t* acc, int64_t acc_stride, bool fresh, const int8_t* next) {
  int p = 0;
  for (; p + 2 <= panels; p += 2) {
    block<kTwoRows, true>(a, a_stride, b + p * panel_stride, panel_stride, length, acc + p * kColumns, acc_stride,
                          fresh, p == 0 ? next : nullptr);
  }
  if (p < panels) {
    block<kTwoRows, false>(a, a_stride, b + p * panel_stride, panel_stride, length, acc + p * kColumns, acc_stride,
                           fresh, nullptr);
  }
}

void multiply(const int8_t* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
              int64_t length, const int32_t* start, int32_t* acc, int64_t acc_stride, bool fresh) {
  int64_t r = 0;
  if (rows >= 32) {
    const Tiles tiles(shapes(16, 16));
    for (; r + 32 <= rows; r += 32) {
      const int8_t* next = r + 64 <= rows ? a + (r + 32) * a_stride : nullptr;
      columns<true>(a + r * a_stride, a_stride, b, panel_stride, panels, length, acc + r * acc_stride, acc_stride,
                    fresh, next);
    }
  }
  if (r == rows) return;
  const int64_t left = rows - r;
  const Tiles tiles(left > 16 ? shapes(16, left - 16) : shapes(left, 0));
  (left > 16 ? columns<true> : columns<false>)(a + r * a_stride, a_stride, b, panel_stride, panels, length,
                                               acc + r * acc_stride, acc_stride, fresh, nullptr);
}

}  // namespace

const QuantTiles& amx_tiles() {
  static const QuantTiles tiles = {0, 64, pack512<0, 64>, multiply, direct};
  return tiles;
}

}  // namespace aloft::quant_detail
