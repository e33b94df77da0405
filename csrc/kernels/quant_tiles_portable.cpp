// Plain C++; the reference for the vector files.
#include <cstring>

#include "kernels/quant_isa.h"

namespace aloft::quant_detail {
namespace {

void pack(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t length, uint8_t* to,
          int64_t panel_stride) {
  for (int p = 0; p < panels; ++p, n0 += kColumns, to += panel_stride) {
    std::memset(to, 0, static_cast<size_t>((length + 3) / 4 * 4 * kColumns));
    for (int64_t j = 0; j < kColumns && n0 + j < n; ++j) {
      for (int64_t i = 0; i < length; ++i) {
        to[i / 4 * 64 + j * 4 + i % 4] = static_cast<uint8_t>(weight_at(w, k0 + i, n0 + j));
      }
    }
  }
}

void multiply(const int8_t* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
              int64_t length, const int32_t* start, int32_t* acc, int64_t acc_stride, bool fresh) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) {
      int32_t sums[kColumns];
      int32_t* to = acc + r * acc_stride + p * kColumns;
      for (int j = 0; j < kColumns; ++j) sums[j] = fresh ? start[r] : to[j];
      for (int64_t k = 0; k < length; ++k) {
        const int8_t* line = reinterpret_cast<const int8_t*>(b) + p * panel_stride + k / 4 * 64 + k % 4;
        const int32_t x = a[r * a_stride + k];
        for (int j = 0; j < kColumns; ++j) sums[j] += x * line[j * 4];
      }
      std::memcpy(to, sums, sizeof sums);
    }
  }
}

}  // namespace

const QuantTiles& portable_tiles() {
  static const QuantTiles tiles = {0, 4, pack, multiply};
  return tiles;
}

}  // namespace aloft::quant_detail
