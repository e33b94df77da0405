// Quantisation of activations: fp32 inside, round half to even, saturated. Rows are dense along the last dimension.
//
// Every step is one separately rounded fp32 operation, so results do not depend on the instruction set, the number
// of threads or the other rows. A NaN becomes the smallest value of the output type.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// I4: eight signed values in an int32, the first in the lowest bits.
enum class QuantOut : uint8_t { I8, U8, I32, I4 };

// Bytes of one row of `cols` values.
inline int64_t quant_row_bytes(QuantOut out, int64_t cols) {
  return out == QuantOut::I32 ? cols * 4 : out == QuantOut::I4 ? cols / 2 : cols;
}

struct StaticQuantArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;  // of x
  const void* x = nullptr;
  // Scale and offset of element (r, c): index c * col_step + r % channels * row_step.
  const float* scale = nullptr;
  const float* offset = nullptr;  // null: 0
  int64_t col_step = 0, row_step = 0, channels = 1;
  bool divide = false;  // x / scale + offset instead of x * scale + offset
  QuantOut out = QuantOut::I8;
  void* y = nullptr;
};
ALOFT_KERNEL_API void quantize(const StaticQuantArgs& args);

// Row by row: v = x * smooth; m = max |v|; y = v * (L / m), scale = m / L with L = 127 (int8) or 7 (int4).
// A row of zeros gives zeros and scale 0. With `offset` (asymmetric): scale = max((max - min) / (2 L + 1), 1e-12),
// offset = L - max / scale, y = v / scale + offset.
struct DynamicQuantArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;
  const void* x = nullptr;
  const float* smooth = nullptr;       // [groups or 1, cols]; null: ones
  const int32_t* group_end = nullptr;  // [groups]: first row behind each group; null: one group
  int64_t groups = 1;
  QuantOut out = QuantOut::I8;  // I8 or I4
  void* y = nullptr;
  float* scale = nullptr;   // [rows]
  float* offset = nullptr;  // [rows]; null: symmetric
};
ALOFT_KERNEL_API void dynamic_quant(const DynamicQuantArgs& args);
// Rows [begin, end), in the calling thread.
ALOFT_KERNEL_API void dynamic_quant_rows(const DynamicQuantArgs& args, int64_t begin, int64_t end);

// One row that is in fp32 already, from the calling thread (the fused operators); `row` may be overwritten.
ALOFT_KERNEL_API float quantize_row_dynamic(const float* row, int64_t cols, QuantOut out, void* y);
ALOFT_KERNEL_API void quantize_row_static(const float* row, int64_t cols, const float* scale, const float* offset,
                                          int64_t step, bool divide, QuantOut out, void* y);

}  // namespace aloft
