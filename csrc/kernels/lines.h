// Vector sweeps over one dense line; see lines_impl.h. Inside libaloft_kernels only.
#pragma once
#include <cstdint>

#include "kernels/half.h"

namespace aloft {

struct LineKernels {
  int64_t (*first_extreme)(const void* line, int64_t n, bool greatest);
  int64_t (*skip_worse)(const void* line, int64_t i, int64_t n, float bound, bool descending);
};
// For float, f16 and bf16, in the best instruction set.
template <class T>
const LineKernels& line_kernels();

}  // namespace aloft
