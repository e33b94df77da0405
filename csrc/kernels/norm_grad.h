// Gradient of rms_norm. Rows are dense.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

struct RmsNormGradArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;         // of dy, x, dx
  DType gamma_dtype = DType::F32;   // any float type
  DType dgamma_dtype = DType::F32;  // any float type
  const void *dy = nullptr, *x = nullptr, *gamma = nullptr;
  const float* rstd = nullptr;
  void *dx = nullptr, *dgamma = nullptr;
};
ALOFT_KERNEL_API void rms_norm_grad(const RmsNormGradArgs& args);

}  // namespace aloft
