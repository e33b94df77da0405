// Normalisations over the last dimension. Rows are dense; everything is computed in fp32.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

struct RmsNormArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;        // of x, residual, y, sum
  DType gamma_dtype = DType::F32;  // that of x, or F32
  float epsilon = 1e-6f;
  float gamma_offset = 0;          // added to gamma (Gemma: 1)
  const void* x = nullptr;         // [rows, cols], row stride below
  int64_t x_stride = 0;            // elements between rows of x
  const void* residual = nullptr;  // added to x first, [rows, cols] dense; null: none
  void* sum = nullptr;             // receives x + residual; null: not wanted. May be x or residual itself
  const void* gamma = nullptr;     // [cols]; null: ones
  void* y = nullptr;               // may be x or residual itself
  float* y_fp32 = nullptr;         // receives y before its last rounding; null: not wanted
  float* rstd = nullptr;           // [rows]; null: not wanted
};
// y = v * rstd * gamma with v = x (+ residual). With a residual and a 16-bit type the arithmetic follows the
// device: fp16 normalises the rounded sum, and v * rstd is rounded before it meets gamma.
ALOFT_KERNEL_API void rms_norm(const RmsNormArgs& args);

// The same with work that takes the finished rows [begin, end) at once, in the thread that made them.
struct RowsAfter {
  void (*call)(void* context, int64_t begin, int64_t end) = nullptr;
  void* context = nullptr;
};
ALOFT_KERNEL_API void rms_norm(const RmsNormArgs& args, RowsAfter after);

struct LayerNormArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;
  DType weight_dtype = DType::F32;  // of gamma and beta: that of x, or F32
  float epsilon = 1e-5f;
  const void* x = nullptr;
  const void* residual = nullptr;  // added to x first; null: none
  void* sum = nullptr;             // receives x + residual; null: not wanted
  const void* gamma = nullptr;     // null: ones
  const void* beta = nullptr;      // null: zeros
  void* y = nullptr;
  DType stats_dtype = DType::F32;
  void* mean = nullptr;  // [rows]; null: not wanted
  void* rstd = nullptr;
};
ALOFT_KERNEL_API void layer_norm(const LayerNormArgs& args);

}  // namespace aloft
