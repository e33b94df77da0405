// Operands as the aclnn door receives them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "acl/abi.h"
#include "acl/dtype.h"

namespace aloft {

constexpr int kMaxDims = 8;  // aclnn operators take at most eight dimensions

const char* dtype_name(DType dtype);
const char* format_name(Format format);
bool is_internal(Format format);  // a layout whose memory is not the logical array in row-major order

// Value view of one operand: copied into the work that outlives the call. `data` already points
// at the first element (storage offset applied). Strides count elements of the logical shape;
// for an internal format (NZ) `storage` describes the physical array and strides mean nothing.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::Undefined;
  Format format = Format::ND;
  int ndim = 0;
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};
  int storage_ndim = 0;
  int64_t storage[kMaxDims] = {};
  int64_t offset = 0;  // elements from the storage's start to `data`
  bool present = false;

  explicit operator bool() const { return present; }
  int64_t size(int dim) const { return sizes[dim < 0 ? dim + ndim : dim]; }
  int64_t stride(int dim) const { return strides[dim < 0 ? dim + ndim : dim]; }
  int64_t numel() const;
  bool contiguous() const;
  bool same_shape(const Tensor& other) const;
  std::string shape_text() const;  // "[2, 3]"
  template <class T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
};

}  // namespace aloft

// The opaque objects of the C interface.
struct aclTensor {
  aloft::Tensor view;
};
struct aclTensorList {
  std::vector<const aclTensor*> items;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<uint8_t> values;
};
struct aclScalar {
  aloft::DType dtype;
  alignas(16) unsigned char bytes[16];
  double as_double() const;
  int64_t as_int() const;
};
struct aclScalarList {
  std::vector<const aclScalar*> items;
};
