// Rotary position embedding. A row is one head of one token; pairs (a, b) of its elements are rotated:
// a' = a cos - b sin, b' = b cos + a sin. Computed in fp32, one rounding.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// Where the two members of a pair lie in a row of `width` elements.
enum class Pairs {
  Halves,    // i and i + width / 2
  Adjacent,  // 2 i and 2 i + 1
  Shared,    // tables only: width / 2 entries, one for both members
};

struct RotaryArgs {
  static constexpr int kDims = 8;
  DType dtype = DType::F32;        // of x and y
  DType table_dtype = DType::F32;  // of cos and sin: that of x, or F32
  Pairs input = Pairs::Halves;     // Halves or Adjacent
  Pairs output = Pairs::Halves;    // as input, or Halves
  Pairs table = Pairs::Halves;
  int ndim = 0;  // dimensions of the rows; the elements of a row are dense
  int64_t sizes[kDims] = {};
  int64_t x_strides[kDims] = {}, y_strides[kDims] = {}, cos_strides[kDims] = {}, sin_strides[kDims] = {};
  int64_t width = 0;  // elements that rotate
  int64_t tail = 0;   // elements after them that are copied
  const void *x = nullptr, *cos = nullptr, *sin = nullptr;
  void* y = nullptr;  // may be x where output and input pairs lie alike
};
ALOFT_KERNEL_API void rotary(const RotaryArgs& args);

}  // namespace aloft
