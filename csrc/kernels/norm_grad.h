// Gradients of rms_norm and layer_norm. Rows are dense.
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

struct LayerNormGradArgs {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;        // of dy, x, dx
  DType gamma_dtype = DType::F32;  // any float type, like those below
  DType stats_dtype = DType::F32;  // of mean, rstd
  DType dgamma_dtype = DType::F32, dbeta_dtype = DType::F32;
  const void *dy = nullptr, *x = nullptr, *mean = nullptr, *rstd = nullptr;
  const void* gamma = nullptr;                              // null: ones
  void *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;  // null: not wanted
};
ALOFT_KERNEL_API void layer_norm_grad(const LayerNormGradArgs& args);

}  // namespace aloft
