// Cumulative sums over the middle dimension of a dense [outer, n, inner] array.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

struct CumsumArgs {
  int64_t outer = 0, n = 0, inner = 1;
  DType x_dtype = DType::F32, y_dtype = DType::F32;  // F32, F16, BF16, I64, I32, I16, I8, U8; x also Bool
  const void* x = nullptr;
  void* y = nullptr;  // may be x if the types are equal
};
ALOFT_KERNEL_API bool cumsum_supports(DType x, DType y);
// Elements are converted to y's type first. fp32 sums in double, fp16 and bf16 in fp32, integers wrap.
ALOFT_KERNEL_API void cumsum(const CumsumArgs& args);

}  // namespace aloft
