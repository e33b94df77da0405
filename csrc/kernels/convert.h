// Conversion between element types.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// 1 when values of `dtype` can be read and written by convert().
ALOFT_KERNEL_API bool convertible(DType dtype);

// Converts n dense elements. Float to a narrower float rounds to nearest even; float to integer cuts off the
// fraction and saturates (NaN gives 0); anything to bool is "not zero"; complex to real takes the real part.
// Integers wrap when they are narrowed. Runs in the calling thread.
ALOFT_KERNEL_API void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n);

// The same for any strides (in elements); the arrays must not overlap.
ALOFT_KERNEL_API void convert_strided(const void* from, DType from_dtype, const int64_t* from_strides, void* to,
                                      DType to_dtype, const int64_t* to_strides, const int64_t* sizes, int ndim);

}  // namespace aloft
