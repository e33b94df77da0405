// Norms and gated units that end in quantised rows: one pass, fp32 inside, every step rounded by itself.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/quantize.h"

namespace aloft {

// How a finished fp32 row becomes integers.
struct RowQuant {
  bool dynamic = false;
  const float* scale = nullptr;  // static: [cols] or one; dynamic: multiplied first, [cols], or null
  const float* zero = nullptr;   // static: as scale, or null
  int64_t step = 1;              // 0: one scale for all columns
  bool divide = false;           // static: n / scale + zero instead of n * scale + zero
  QuantOut out = QuantOut::I8;
  void* y = nullptr;        // null: not wanted
  float* scales = nullptr;  // dynamic: [rows]
};

struct NormQuantArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;
  const void* x = nullptr;
  const void* residual = nullptr;  // added to x; null: none
  void* sum = nullptr;             // receives the rounded sum; null: not wanted
  const float* gamma = nullptr;    // [cols]
  const float* beta = nullptr;     // [cols], or null
  float epsilon = 1e-6f;
  bool half_steps = false;  // fp16: the sum, its normalised value and the product with gamma are rounded to fp16
  float* rstd = nullptr;    // [rows]; null: not wanted
  RowQuant out[2];
};
ALOFT_KERNEL_API void norm_quant(const NormQuantArgs& args);

struct GatedQuantArgs {
  int64_t rows = 0, cols = 0;  // cols: of the result; x has twice as many
  DType dtype = DType::F32;    // of x; I32: dequantised first
  const void* x = nullptr;
  const int32_t* bias = nullptr;        // I32: [2 cols], added to x; null: none
  const float* weight_scale = nullptr;  // I32: [groups, 2 cols]
  const float* row_scale = nullptr;     // I32: [rows]; null: ones
  bool right = false;                   // the activation is applied to the right half (or the odd elements)
  bool interleaved = false;             // even and odd elements instead of halves
  bool clipped = false;                 // v = min(v, limit), g = clamp(g) + glu_bias
  float limit = 0, alpha = 1, glu_bias = 0;
  const int64_t* group_end = nullptr;  // [groups]: first row behind each; rows behind the last are not touched
  int64_t groups = 1;
  RowQuant out;             // scale and zero: [groups, cols], or [groups] with step 0
  int64_t scale_group = 0;  // between the scales of groups
};
ALOFT_KERNEL_API void gated_quant(const GatedQuantArgs& args);

}  // namespace aloft
