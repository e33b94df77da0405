// Softmax, log-softmax and their gradients over the middle dimension of a dense [outer, n, inner] array.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

struct SoftmaxArgs {
  int64_t outer = 0, n = 0, inner = 1;
  DType dtype = DType::F32;    // of x (forward) or grad and output (backward): F32, F16 or BF16
  DType y_dtype = DType::F32;  // of y: that of x, or F32
  bool log = false;
  const void* x = nullptr;       // forward: the input; backward: the gradient of the output
  const void* output = nullptr;  // backward: the output of the forward pass; forward: null
  void* y = nullptr;             // may be x
};
// fp32 inside, one rounding at the end. A row that holds NaN, or nothing but -inf, becomes NaN.
ALOFT_KERNEL_API void softmax(const SoftmaxArgs& args);

}  // namespace aloft
