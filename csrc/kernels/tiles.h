// AMX tiles for *_amx.cpp files only (they are entered through isa() >= Isa::Amx, which has the permission).
//
// A tile holds up to 16 rows of 64 bytes. _tile_dpbf16ps(c, a, b), 32 values of k: c[m][n] += e + o, with
// e = fma(a[m][2i], b[i][2n], e) and o = fma(a[m][2i + 1], b[i][2n + 1], o) over i = 0 .. 15, both from zero; denormals
// count as zero on the way in and out (as with MXCSR's DAZ and FTZ). _tile_dpbssd: int8, exact.
// The registers belong to the thread, survive until released and cost a context switch 8 KiB meanwhile: every use
// lies in the scope of a Tiles object.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace aloft {
namespace {

// Shapes of the eight tiles, all zero (that is: unused) to begin with.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};

  TileShapes& set(int tile, int tile_rows, int row_bytes = 64) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    bytes[tile] = static_cast<uint16_t>(row_bytes);
    return *this;
  }
};
static_assert(sizeof(TileShapes) == 64, "the layout _tile_loadconfig reads");

// The tiles of this thread, zero-filled, for the life of the object.
class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) { configure(shapes); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  void configure(const TileShapes& shapes) {       // clears all tiles
    asm volatile("" : : "r"(&shapes) : "memory");  // GCC takes the instruction for one that reads eight bytes
    _tile_loadconfig(&shapes);
  }
};

// Between writing memory and _tile_loadd of it: GCC does not know that the instruction reads memory.
[[gnu::always_inline]] inline void before_tile_load() { asm volatile("" : : : "memory"); }

}  // namespace
}  // namespace aloft
