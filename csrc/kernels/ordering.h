// Choosing and ordering along the middle dimension of a dense [outer, n, inner] array: arg-max, top-k, sort.
// Order is torch's: NaN is greater than every number, -0 equals 0, equal values keep their order.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

struct OrderingArgs {
  int64_t outer = 0, n = 0, inner = 1;  // n < 2^31
  DType dtype = DType::F32;             // F32, F16, BF16, I64, I32, I16, I8, U8 or Bool
  const void* x = nullptr;
  void* values = nullptr;      // of x's dtype; null: not wanted. [outer, k or 1, inner]
  int64_t* indices = nullptr;  // same shape; null: not wanted
};
bool ALOFT_KERNEL_API ordering_supports(DType dtype);
// The first greatest (smallest) element of every line, and where it is; the first NaN if there is one.
ALOFT_KERNEL_API void arg_extreme(const OrderingArgs& args, bool greatest);
// The k first elements of every line in descending (largest) or ascending order; among equals the lower index first.
ALOFT_KERNEL_API void top_k(const OrderingArgs& args, int64_t k, bool largest);
// Every line, stably sorted.
ALOFT_KERNEL_API void sort_lines(const OrderingArgs& args, bool descending);

}  // namespace aloft
