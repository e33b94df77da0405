// Activations and gated units. Computed in fp32, one rounding.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

enum class Activation {
  Silu,      // v * sigmoid(alpha * v)
  Gelu,      // v * (1 + erf(v / sqrt 2)) / 2
  GeluTanh,  // the tanh approximation
};

// y = activation(x), n dense elements of F32, F16 or BF16.
ALOFT_KERNEL_API void activate(Activation kind, float alpha, DType dtype, const void* x, void* y, int64_t n);

// y = activation(act) * gate, [rows, cols]. Clipped: act = min(act, limit), gate = clamp(gate, -limit, limit) + bias.
struct GatedArgs {
  Activation kind = Activation::Silu;
  DType dtype = DType::F32;
  int64_t rows = 0, cols = 0;
  const void *act = nullptr, *gate = nullptr;
  int64_t stride = 0;  // elements between the rows of act and of gate
  int64_t step = 1;    // elements between their columns: 1, or 2 (act and gate interleaved)
  bool clipped = false;
  float alpha = 1.0f, limit = 0, bias = 0;
  void* y = nullptr;          // dense
  void* activated = nullptr;  // receives activation(act), dense; null: not wanted
};
ALOFT_KERNEL_API void gated(const GatedArgs& args);

// The same of fp32 sums [rows, 32], 16 columns of act and 16 of gate, which are rounded to dtype first: y = [rows, 16],
// y_stride elements between rows. In the calling thread.
void gated_sums(Activation kind, DType dtype, const float* sums, int64_t rows, void* y, int64_t y_stride);

// Gradient of silu(act) * gate, plain (step 1).
struct SwigluGradArgs {
  DType dtype = DType::F32;
  int64_t rows = 0, cols = 0;
  const void* dy = nullptr;                    // dense
  const void *act = nullptr, *gate = nullptr;  // row stride below
  void *dact = nullptr, *dgate = nullptr;      // same row stride
  int64_t stride = 0;
};
ALOFT_KERNEL_API void swiglu_grad(const SwigluGradArgs& args);

}  // namespace aloft
