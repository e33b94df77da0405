// Dense conversions between the float types, compiled once for each instruction set.
#pragma once
#include "kernels/vec.h"

namespace aloft {
namespace {

template <class From, class To>
void convert_floats(const void* from, void* to, int64_t n) {
  const From* f = static_cast<const From*>(from);
  To* t = static_cast<To*>(to);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(t + i, load(f + i));
  if (i < n) store_tail(t + i, load_tail(f + i, n - i), n - i);
}

}  // namespace

using DenseConversion = void (*)(const void*, void*, int64_t);
struct ConvertKernels {
  DenseConversion bf16_to_f32, f32_to_bf16, f16_to_f32, f32_to_f16, bf16_to_f16, f16_to_bf16;
};
#define ALOFT_CONVERT_KERNELS                                                            \
  {convert_floats<bf16, float>, convert_floats<float, bf16>, convert_floats<f16, float>, \
   convert_floats<float, f16>,  convert_floats<bf16, f16>,   convert_floats<f16, bf16>}
extern const ConvertKernels kConvertKernelsAvx2;

}  // namespace aloft
