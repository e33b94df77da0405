#include "kernels/format.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/compact.h"
#include "kernels/parallel.h"

namespace aloft {
namespace {

constexpr int64_t kGrainBytes = 1 << 18;

// One panel: c0 columns of all rows. `width` columns of it exist.
template <bool kToNz>
void panel(char* rows, char* nz, const NzShape& s, int64_t column, size_t item) {
  const size_t line = static_cast<size_t>(s.c0) * item;
  const size_t width = static_cast<size_t>(std::min(s.c0, s.cols - column)) * item;
  const size_t pitch = static_cast<size_t>(s.cols) * item;
  char* row = rows + static_cast<size_t>(column) * item;
  for (int64_t r = 0; r < s.rows; ++r, row += pitch, nz += line) {
    if (!kToNz) {
      std::memcpy(row, nz, width);
    } else if (width == 32 && line == 32) {  // the usual panel: 32 bytes
      std::memcpy(nz, row, 32);
    } else {
      std::memcpy(nz, row, width);
      std::memset(nz + width, 0, line - width);
    }
  }
  if (kToNz) std::memset(nz, 0, static_cast<size_t>(s.padded_rows() - s.rows) * line);
}

template <bool kToNz>
void convert_nz(char* rows, char* nz, const NzShape& s, size_t item) {
  const int64_t panels = s.panels();
  const int64_t panel_bytes = s.padded_rows() * s.c0 * static_cast<int64_t>(item);
  const int64_t matrix_bytes = s.rows * s.cols * static_cast<int64_t>(item);
  parallel_for(s.batch * panels, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, panel_bytes)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   panel<kToNz>(rows + i / panels * matrix_bytes, nz + i * panel_bytes, s, i % panels * s.c0, item);
                 }
               });
}

// Calls move(dense element, blocked element) for every element of [n, c, spatial]; parallel over n.
template <class Index, class Move>
void each_nchw(int64_t n, int64_t c, int64_t spatial, Index&& blocked, Move&& move) {
  parallel_for(n, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, 4 * c * spatial)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   for (int64_t j = 0; j < c; ++j) {
                     for (int64_t k = 0; k < spatial; ++k) move((i * c + j) * spatial + k, blocked(i, j, k));
                   }
                 }
               });
}

template <class Index>
void convert_blocked(char* dense, char* blocked, int64_t n, int64_t c, int64_t spatial, int64_t physical,
                     bool to_blocked, size_t item, Index&& index) {
  if (to_blocked) std::memset(blocked, 0, static_cast<size_t>(physical) * item);
  auto with = [&](auto word) {
    using Word = decltype(word);
    Word *d = reinterpret_cast<Word*>(dense), *b = reinterpret_cast<Word*>(blocked);
    if (to_blocked) {
      each_nchw(n, c, spatial, index, [=](int64_t from, int64_t to) { b[to] = d[from]; });
    } else {
      each_nchw(n, c, spatial, index, [=](int64_t to, int64_t from) { d[to] = b[from]; });
    }
  };
  switch (item) {
    case 1:
      return with(uint8_t());
    case 2:
      return with(uint16_t());
    case 4:
      return with(uint32_t());
    default:
      return with(uint64_t());
  }
}

char* bytes(const void* p) { return static_cast<char*>(const_cast<void*>(p)); }

void convert_c1(char* dense, char* blocked, const C1Shape& s, bool to_blocked, size_t item) {
  const int64_t c1 = (s.c + s.c0 - 1) / s.c0;
  convert_blocked(
      dense, blocked, s.n, s.c, s.spatial, s.elements(), to_blocked, item,
      [=](int64_t n, int64_t c, int64_t k) { return ((n * c1 + c / s.c0) * s.spatial + k) * s.c0 + c % s.c0; });
}

void convert_z(char* dense, char* fractal, const FractalZShape& s, bool to_blocked, size_t item) {
  const int64_t n1 = (s.n + s.n0 - 1) / s.n0;
  convert_blocked(dense, fractal, s.n, s.c, s.spatial, s.elements(), to_blocked, item,
                  [=](int64_t n, int64_t c, int64_t k) {
                    return ((((c / s.c0) * s.spatial + k) * n1 + n / s.n0) * s.n0 + n % s.n0) * s.c0 + c % s.c0;
                  });
}

bool may_be_compact(const NzShape& s, size_t item) {
  return item == 2 && s.batch == 1 && s.r0 == 16 && s.c0 == compact::kColumns && s.rows > 0 && s.cols > 0 &&
         s.rows % compact::kRows == 0 && s.cols % compact::kColumns == 0;
}

}  // namespace

void rows_to_nz(const void* rows, void* nz, const NzShape& shape, size_t item) {
  convert_nz<true>(bytes(rows), bytes(nz), shape, item);
}
void nz_to_rows(const void* nz, void* rows, const NzShape& shape, size_t item) {
  if (may_be_compact(shape, item) && compact::is_compact(nz)) {
    std::vector<uint16_t> plain(static_cast<size_t>(shape.elements()));
    compact::expand(compact::view(nz, shape.rows, shape.cols), plain.data());
    return convert_nz<false>(bytes(rows), bytes(plain.data()), shape, item);
  }
  convert_nz<false>(bytes(rows), bytes(nz), shape, item);
}
void nchw_to_nc1hwc0(const void* nchw, void* blocked, const C1Shape& shape, size_t item) {
  convert_c1(bytes(nchw), bytes(blocked), shape, true, item);
}
void nc1hwc0_to_nchw(const void* blocked, void* nchw, const C1Shape& shape, size_t item) {
  convert_c1(bytes(nchw), bytes(blocked), shape, false, item);
}
void nchw_to_fractal_z(const void* nchw, void* fractal, const FractalZShape& shape, size_t item) {
  convert_z(bytes(nchw), bytes(fractal), shape, true, item);
}
void fractal_z_to_nchw(const void* fractal, void* nchw, const FractalZShape& shape, size_t item) {
  convert_z(bytes(nchw), bytes(fractal), shape, false, item);
}

}  // namespace aloft
