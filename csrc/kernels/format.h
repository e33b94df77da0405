// Conversion between row-major arrays and the internal physical layouts. Values are moved bit by bit; padding is
// zero. One array is batch x [logical dims below]; `item` is the element size in bytes (1, 2, 4 or 8).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/api.h"

namespace aloft {

// FRACTAL_NZ of [rows, cols]: [ceil(cols / c0), ceil(rows / r0), r0, c0] with r0 = 16.
struct NzShape {
  int64_t batch = 1, rows = 0, cols = 0;
  int64_t r0 = 16, c0 = 16;
  int64_t padded_rows() const { return (rows + r0 - 1) / r0 * r0; }
  int64_t panels() const { return (cols + c0 - 1) / c0; }
  int64_t elements() const { return batch * panels() * padded_rows() * c0; }  // of the physical array
};
ALOFT_KERNEL_API void rows_to_nz(const void* rows, void* nz, const NzShape& shape, size_t item);
ALOFT_KERNEL_API void nz_to_rows(const void* nz, void* rows, const NzShape& shape, size_t item);

// NC1HWC0 of [n, c, spatial]: [n, ceil(c / c0), spatial, c0].
struct C1Shape {
  int64_t n = 0, c = 0, spatial = 0;
  int64_t c0 = 16;
  int64_t elements() const { return n * ((c + c0 - 1) / c0) * spatial * c0; }
};
ALOFT_KERNEL_API void nchw_to_nc1hwc0(const void* nchw, void* blocked, const C1Shape& shape, size_t item);
ALOFT_KERNEL_API void nc1hwc0_to_nchw(const void* blocked, void* nchw, const C1Shape& shape, size_t item);

// FRACTAL_Z of [n, c, spatial]: [ceil(c / c0) * spatial, ceil(n / n0), n0, c0] with n0 = 16.
struct FractalZShape {
  int64_t n = 0, c = 0, spatial = 0;
  int64_t n0 = 16, c0 = 16;
  int64_t elements() const { return (c + c0 - 1) / c0 * spatial * ((n + n0 - 1) / n0) * n0 * c0; }
};
ALOFT_KERNEL_API void nchw_to_fractal_z(const void* nchw, void* fractal, const FractalZShape& shape, size_t item);
ALOFT_KERNEL_API void fractal_z_to_nchw(const void* fractal, void* nchw, const FractalZShape& shape, size_t item);

}  // namespace aloft
