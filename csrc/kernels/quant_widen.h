// 16-bit activations times int8 or int4 weights, which are widened to fp32 in registers. The bits of a row do not
// depend on the instruction set, the number of threads, the layout of the weights or the other rows.
//
//   acc[g] = chain of fp32 fused multiply-adds over the k of group g, in order (each product is exact in fp32)
//   f = sum over g, in order, of (acc[g] + zero[g][n] * (sum of a in g)) * scale[g][n];  out = f + bias[n], rounded
#pragma once
#include "kernels/quant_matmul.h"

namespace aloft {

struct WidenMatmul {
  int64_t m = 0, n = 0, k = 0;
  DType a_dtype = DType::BF16;  // BF16, F16 or F32
  const void* a = nullptr;      // [m, k]
  int64_t a_stride = 0;         // elements between rows
  QuantWeight b;
  int64_t group = 0;            // values of k one scale covers, a multiple of 32; 0: all of them
  const void* scale = nullptr;  // [groups, n], or with scale_step 0 [groups]
  const void* zero = nullptr;   // as scale: added to the weights; null: 0
  int64_t scale_step = 1;
  const float* bias = nullptr;       // [n]
  DType out_dtype = DType::BF16;     // BF16, F16, F32 or I8
  const float* out_scale = nullptr;  // int8 output: sat(rint(f * out_scale) + out_offset)
  const int32_t* out_offset = nullptr;
  int64_t out_scale_step = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  DType scale_dtype = DType::F32;  // of scale and zero: F32, BF16 or F16
};

ALOFT_KERNEL_API void widen_matmul(const WidenMatmul& call);

}  // namespace aloft
