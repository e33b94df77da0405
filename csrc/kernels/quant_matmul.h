// Products of quantised matrices: int8 (or int4) activations times int8 or int4 weights, accumulated exactly in
// int32, and one fixed chain of fp32 operations afterwards. The bits of a row do not depend on the instruction set,
// the number of threads, the layout of the weights or the other rows.
//
//   acc[g] = sum over the k of group g of a[m][k] * b[k][n]           exact: |acc| <= 128 * 128 * 65535 < 2^31
//   one group:   f = float(acc + integer_bias[n]) * scale[n]
//   more groups: f = sum over g, in order, of (float(acc[g]) - zero[g][n] * float(sum of a in g)) * scale[g][n]
//   f = f * row_scale[m];  f = f + bias[n]                            each where given
//   out = f rounded; int8: sat(rint(f) + out_offset[n]); int32: acc + integer_bias, no scales
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// How weights [k, n] lie in memory; the unit is a byte, which holds one int8 or two int4 values (the lower index in
// the lower four bits).
enum class QuantLayout : uint8_t {
  Rows,        // k contiguous: column n begins at n * stride
  Cols,        // n contiguous: row k begins at k * stride
  Panels,      // FRACTAL_NZ of [k, n]: (k, n) in line k of panel n / (values of a line)
  PanelsRows,  // FRACTAL_NZ of [n, k]: (k, n) in line n of panel k / (values of a line)
};

struct QuantWeight {
  const uint8_t* data = nullptr;
  int bits = 8;  // 8 or 4
  QuantLayout layout = QuantLayout::Rows;
  int64_t stride = 0;  // bytes; panels: lines of one panel (the padded rows of the stored matrix)
  int64_t line = 32;   // bytes of a panel's line: 32, or 64 for packed int4 that was cast as int32
};

struct QuantMatmul {
  int64_t m = 0, n = 0, k = 0;
  const int8_t* a = nullptr;  // [m, k]
  int64_t a_stride = 0;       // between rows
  QuantWeight b;
  int64_t group = 0;            // values of k one scale covers, a multiple of 32; 0: all of them
  const void* scale = nullptr;  // [groups, n] or, with scale_step 0, [groups]; null: ones
  int64_t scale_step = 1;
  const float* zero = nullptr;            // [groups, n], with groups only
  const int32_t* integer_bias = nullptr;  // [n], without groups only
  const float* row_scale = nullptr;       // [m]
  const float* bias = nullptr;            // [n]
  const int32_t* out_offset = nullptr;    // int8 output
  int64_t out_offset_step = 0;            // 1: [n]
  DType out_dtype = DType::F32;           // F32, F16, BF16, I8, I32
  void* out = nullptr;
  int64_t out_stride = 0;          // elements between rows
  DType scale_dtype = DType::F32;  // or I64: the float in the low half (npu_trans_quant_param)
};

ALOFT_KERNEL_API void quant_matmul(const QuantMatmul& call);

// out [m, n / 2] = silu(g) * u of the product [g, u], which is rounded to the output's float type first. For calls
// without output quantisation whose n / 2 is a multiple of quant_gate_columns.
ALOFT_KERNEL_API void quant_matmul_gated(const QuantMatmul& call);
ALOFT_KERNEL_API int64_t quant_gate_columns(const QuantWeight& weight);

// Two int4 values a byte -> int8, `count` values.
ALOFT_KERNEL_API void unpack_int4(const uint8_t* packed, int64_t count, int8_t* to);

}  // namespace aloft
