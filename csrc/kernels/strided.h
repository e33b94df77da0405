// Copies and fills of arrays with any strides.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/api.h"

namespace aloft {

// Element-wise copy of `ndim` dimensions; strides count elements of `item` bytes (any size). The two arrays
// must not overlap, except that equal contiguous ranges are copied as memmove does.
ALOFT_KERNEL_API void strided_copy(const void* from, const int64_t* from_strides, void* to, const int64_t* to_strides,
                                   const int64_t* sizes, int ndim, size_t item);
// Writes `value` (item bytes) to every element.
ALOFT_KERNEL_API void strided_fill(void* to, const int64_t* to_strides, const int64_t* sizes, int ndim,
                                   const void* value, size_t item);

// A loop nest over several arrays with equal sizes and their own strides, dimensions of size 1 dropped and
// neighbouring ones merged where every array allows it. The order of elements is kept.
struct ALOFT_KERNEL_API LoopNest {
  static constexpr int kArrays = 4, kDims = 12;
  int ndim = 0, arrays = 0;
  bool empty = false;
  int64_t sizes[kDims];
  int64_t strides[kArrays][kDims];  // elements
  LoopNest(const int64_t* sizes, int ndim, const int64_t* const* strides, int arrays);
  int64_t outer() const;  // how many inner loops there are
  int64_t inner() const { return ndim ? sizes[ndim - 1] : 1; }
  int64_t inner_stride(int array) const { return ndim ? strides[array][ndim - 1] : 0; }
  // Offset in elements of the start of inner loop number `index` in `array`.
  void offsets(int64_t index, int64_t* out) const;
};

}  // namespace aloft
