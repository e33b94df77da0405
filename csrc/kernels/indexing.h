// Reading and writing at places given by an index tensor.
#pragma once
#include <cstddef>
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// The first element of `index` (I64 or I32, `count` dense elements) outside [0, size), or -1.
ALOFT_KERNEL_API int64_t find_out_of_range(const void* index, DType index_dtype, int64_t count, int64_t size);

// y[o, j, :] = x[o, index[j], :] for dense x [outer, n, inner] and y [outer, count, inner] of `item` bytes.
struct SelectArgs {
  int64_t outer = 0, n = 0, inner = 1, count = 0;
  size_t item = 4;
  const void* x = nullptr;
  const void* index = nullptr;  // [count], every element in [0, n)
  DType index_dtype = DType::I64;
  void* y = nullptr;
};
ALOFT_KERNEL_API void index_select(const SelectArgs& args);

// A walk over an index tensor: at its element with coordinates (.., i_dim, ..), `base` is addressed with i_dim
// replaced by the index found there, `other` with the coordinates themselves. Strides count elements.
struct PlaceArgs {
  int ndim = 0, dim = 0;
  const int64_t* sizes = nullptr;  // of the index tensor
  const void* index = nullptr;
  DType index_dtype = DType::I64;
  const int64_t* index_strides = nullptr;
  void* base = nullptr;
  const int64_t* base_strides = nullptr;
  void* other = nullptr;
  const int64_t* other_strides = nullptr;
};
// other = base[index]
ALOFT_KERNEL_API void gather(const PlaceArgs& args, size_t item);
// base[index] = other; of several writes to one place the last along `dim` remains
ALOFT_KERNEL_API void scatter(const PlaceArgs& args, size_t item);
ALOFT_KERNEL_API bool scatter_add_supports(DType dtype);
// base[index] += other, in order along `dim`, rounded to the type after every addition
ALOFT_KERNEL_API void scatter_add(const PlaceArgs& args, DType dtype);

}  // namespace aloft
