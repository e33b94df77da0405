// Blocks of 32 x 32 sums one after the other. Tiles 0-3 hold the sums, 4 and 5 rows of the left operand, 6 and 7
// weights: four products for four loads. A tile of sums is stored between two products of the next block's first step.
#include "kernels/quant_isa.h"
#include "kernels/tiles.h"

namespace aloft::quant_detail {
namespace {

constexpr int64_t kTileRows = 16, kRow = 32;  // sums of a row of a block

void begin(int64_t rows) {
  const int first = static_cast<int>(rows < kTileRows ? rows : kTileRows), second = static_cast<int>(rows) - first;
  TileShapes s;
  s.set(0, first).set(1, first).set(4, first).set(6, 16).set(7, 16);
  if (second) s.set(2, second).set(3, second).set(5, second);
  asm volatile("" : : "r"(&s) : "memory");
  _tile_loadconfig(&s);
}

void end() {
  _tile_release();
  _mm_sfence();  // what was stored past the caches, before other threads are told that it is there
}

constexpr int kBytes = kRow * 4;

#define ALOFT_NEW_SUMS(tile, offset)                           \
  do {                                                         \
    if (before) _tile_stored(tile, before + (offset), kBytes); \
    _tile_zero(tile);                                          \
  } while (0)
#define ALOFT_LOAD_LEFT(tile, from)             \
  do {                                          \
    if (kOnce)                                  \
      _tile_stream_loadd(tile, from, a_stride); \
    else                                        \
      _tile_loadd(tile, from, a_stride);        \
  } while (0)

template <bool kTwoRows, bool kOnce>
void block_of(const int8_t* a, int64_t a_stride, const uint8_t* first, const uint8_t* second, int64_t steps,
              int32_t* before, const Beside& beside) {
  const int8_t* below = a + kTileRows * a_stride;
  constexpr int64_t kLower = kTileRows * kRow;
  for (int64_t s = 0; s < steps; ++s, a += 64, below += 64, first += 1024, second += 1024) {
    _tile_loadd(6, first, 64);
    ALOFT_LOAD_LEFT(4, a);
    if (s == 0) ALOFT_NEW_SUMS(0, 0);
    _tile_dpbssd(0, 4, 6);
    if (kTwoRows) {
      ALOFT_LOAD_LEFT(5, below);
      if (s == 0) ALOFT_NEW_SUMS(2, kLower);
      _tile_dpbssd(2, 5, 6);
    }
    _tile_loadd(7, second, 64);
    if (s == 0) ALOFT_NEW_SUMS(1, 16);
    _tile_dpbssd(1, 4, 7);
    if (kTwoRows) {
      if (s == 0) ALOFT_NEW_SUMS(3, kLower + 16);
      _tile_dpbssd(3, 5, 7);
    }
    beside.run(beside.self, s);
    before_tile_load();
  }
}

void block(int64_t rows, const int8_t* a, int64_t a_stride, const uint8_t* first, const uint8_t* second, int64_t steps,
           int32_t* before, bool once, const Beside& beside) {
  before_tile_load();
  if (rows > kTileRows) {
    return (once ? block_of<true, true> : block_of<true, false>)(a, a_stride, first, second, steps, before, beside);
  }
  (once ? block_of<false, true> : block_of<false, false>)(a, a_stride, first, second, steps, before, beside);
}

void flush(int64_t rows, int32_t* before) {
  _tile_stored(0, before, kBytes);
  _tile_stored(1, before + 16, kBytes);
  if (rows <= kTileRows) return;
  _tile_stored(2, before + kTileRows * kRow, kBytes);
  _tile_stored(3, before + kTileRows * kRow + 16, kBytes);
}

}  // namespace

const QuantStream& amx_stream() {
  static const QuantStream stream = {begin, end, block, flush};
  return stream;
}

}  // namespace aloft::quant_detail
