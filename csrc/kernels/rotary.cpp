#include "kernels/rotary.h"

#include <algorithm>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/rotary_impl.h"

namespace aloft {

void rotary(const RotaryArgs& a) {
  RotaryRow row = nullptr;
#if defined(__x86_64__)
  if (isa() >= Isa::Avx512) row = find_rotary_row_avx512(a);
  if (!row && isa() != Isa::Portable) row = find_rotary_row_avx2(a);
#endif
  if (!row) row = find_rotary_row(a);
  int64_t rows = 1;
  for (int d = 0; d < a.ndim; ++d) rows *= a.sizes[d];
  const int64_t width = a.width + a.tail;
  if (!rows || !width) return;
  const int64_t item = a.dtype == DType::F32 ? 4 : 2, table_item = a.table_dtype == DType::F32 ? 4 : 2;
  const char *x = static_cast<const char*>(a.x), *cos = static_cast<const char*>(a.cos);
  const char* sin = static_cast<const char*>(a.sin);
  char* y = static_cast<char*>(a.y);
  parallel_for(rows, std::max<int64_t>(1, (1 << 13) / width), [&](int64_t begin, int64_t end) {
    int64_t index[RotaryArgs::kDims] = {}, x_at = 0, y_at = 0, cos_at = 0, sin_at = 0;
    int64_t rest = begin;
    for (int d = a.ndim - 1; d >= 0; --d) {
      index[d] = rest % a.sizes[d];
      rest /= a.sizes[d];
      x_at += index[d] * a.x_strides[d];
      y_at += index[d] * a.y_strides[d];
      cos_at += index[d] * a.cos_strides[d];
      sin_at += index[d] * a.sin_strides[d];
    }
    for (int64_t r = begin; r < end; ++r) {
      row(x + x_at * item, cos + cos_at * table_item, sin + sin_at * table_item, y + y_at * item, a.width, a.tail);
      for (int d = a.ndim - 1; d >= 0; --d) {  // the next row
        x_at += a.x_strides[d];
        y_at += a.y_strides[d];
        cos_at += a.cos_strides[d];
        sin_at += a.sin_strides[d];
        if (++index[d] < a.sizes[d]) break;
        x_at -= a.sizes[d] * a.x_strides[d];
        y_at -= a.sizes[d] * a.y_strides[d];
        cos_at -= a.sizes[d] * a.cos_strides[d];
        sin_at -= a.sizes[d] * a.sin_strides[d];
        index[d] = 0;
      }
    }
  });
}

}  // namespace aloft
