// Operands of the aclnn door: the opaque objects torch_npu's adapters create for each call.
#include "opapi/tensor.h"

#include <cstring>
#include <memory>
#include <new>

#include "acl/launch.h"
#include "kernels/half.h"

namespace aloft {

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::Undefined:
      return "undefined";
    case DType::F32:
      return "float32";
    case DType::F16:
      return "float16";
    case DType::I8:
      return "int8";
    case DType::I32:
      return "int32";
    case DType::U8:
      return "uint8";
    case DType::I16:
      return "int16";
    case DType::U16:
      return "uint16";
    case DType::U32:
      return "uint32";
    case DType::I64:
      return "int64";
    case DType::U64:
      return "uint64";
    case DType::F64:
      return "float64";
    case DType::Bool:
      return "bool";
    case DType::String:
      return "string";
    case DType::C64:
      return "complex64";
    case DType::C128:
      return "complex128";
    case DType::BF16:
      return "bfloat16";
    case DType::I4:
      return "int4";
    case DType::U1:
      return "uint1";
    case DType::C32:
      return "complex32";
    case DType::HiF8:
      return "hifloat8";
    case DType::F8E5M2:
      return "float8_e5m2";
    case DType::F8E4M3:
      return "float8_e4m3fn";
  }
  return "an unknown dtype";
}

const char* format_name(Format format) {
  switch (format) {
    case Format::Undefined:
      return "undefined";
    case Format::NCHW:
      return "NCHW";
    case Format::NHWC:
      return "NHWC";
    case Format::ND:
      return "ND";
    case Format::NC1HWC0:
      return "NC1HWC0";
    case Format::FractalZ:
      return "FRACTAL_Z";
    case Format::HWCN:
      return "HWCN";
    case Format::NDHWC:
      return "NDHWC";
    case Format::FractalNZ:
      return "FRACTAL_NZ";
    case Format::NCDHW:
      return "NCDHW";
    case Format::NDC1HWC0:
      return "NDC1HWC0";
    case Format::FractalZ3D:
      return "FRACTAL_Z_3D";
    case Format::NCL:
      return "NCL";
  }
  return "an unknown format";
}

bool is_internal(Format format) {
  switch (format) {
    case Format::NC1HWC0:
    case Format::FractalZ:
    case Format::FractalNZ:
    case Format::NDC1HWC0:
    case Format::FractalZ3D:
      return true;
    default:
      return static_cast<int>(format) >= 50;  // the FRACTAL_NZ packings with other C0
  }
}

int64_t Tensor::numel() const {
  int64_t n = 1;
  for (int i = 0; i < ndim; ++i) n *= sizes[i];
  return n;
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool Tensor::same_shape(const Tensor& other) const {
  return ndim == other.ndim && std::memcmp(sizes, other.sizes, sizeof(int64_t) * static_cast<size_t>(ndim)) == 0;
}

std::string Tensor::shape_text() const {
  std::string text = "[";
  for (int i = 0; i < ndim; ++i) {
    if (i) text += ", ";
    text += std::to_string(sizes[i]);
  }
  return text + "]";
}

}  // namespace aloft

using aloft::DType;

namespace {

template <class T>
T load(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class To>
To scalar_as(const aclScalar& s) {
  switch (s.dtype) {
    case DType::F32:
    case DType::C64:  // the real part
      return static_cast<To>(load<float>(s.bytes));
    case DType::F64:
    case DType::C128:
      return static_cast<To>(load<double>(s.bytes));
    case DType::F16:
      return static_cast<To>(aloft::to_float(load<aloft::f16>(s.bytes)));
    case DType::BF16:
      return static_cast<To>(aloft::to_float(load<aloft::bf16>(s.bytes)));
    case DType::I8:
      return static_cast<To>(load<int8_t>(s.bytes));
    case DType::U8:
      return static_cast<To>(load<uint8_t>(s.bytes));
    case DType::Bool:
      return static_cast<To>(load<uint8_t>(s.bytes) != 0);
    case DType::I16:
      return static_cast<To>(load<int16_t>(s.bytes));
    case DType::U16:
      return static_cast<To>(load<uint16_t>(s.bytes));
    case DType::I32:
      return static_cast<To>(load<int32_t>(s.bytes));
    case DType::U32:
      return static_cast<To>(load<uint32_t>(s.bytes));
    case DType::U64:
      return static_cast<To>(load<uint64_t>(s.bytes));
    default:
      return static_cast<To>(load<int64_t>(s.bytes));
  }
}

// Creation functions report failure by a null pointer; the text tells why.
template <class Object, class Value>
Object* make_array(const Value* value, uint64_t count) {
  if (!value && count) {
    aloftSetError("aclCreate*Array: a null pointer was given for %llu values", static_cast<unsigned long long>(count));
    return nullptr;
  }
  auto* object = new (std::nothrow) Object;
  if (object && count) object->values.assign(value, value + count);
  return object;
}

template <class Object>
int destroy(const Object* object) {
  if (!object) return aloft::kOk;
  delete object;
  return aloft::kOk;
}

template <class List, class Item>
List* make_list(const Item* const* value, uint64_t count) {
  if (!value && count) {
    aloftSetError("aclCreate*List: a null pointer was given for %llu items", static_cast<unsigned long long>(count));
    return nullptr;
  }
  auto* list = new (std::nothrow) List;
  if (list && count) list->items.assign(value, value + count);
  return list;
}

int copy_out(const int64_t* values, int count, int64_t** out, uint64_t* out_count) {
  *out = new (std::nothrow) int64_t[static_cast<size_t>(count)];  // the caller frees it with delete[]
  if (!*out) return aloft::kBadAlloc;
  std::memcpy(*out, values, sizeof(int64_t) * static_cast<size_t>(count));
  *out_count = static_cast<uint64_t>(count);
  return aloft::kOk;
}

int null_argument(const char* function) {
  aloftSetError("%s: a required pointer is null", function);
  return 161001;
}

}  // namespace

double aclScalar::as_double() const { return scalar_as<double>(*this); }
int64_t aclScalar::as_int() const { return scalar_as<int64_t>(*this); }

// `data` is the start of the storage; `offset` counts elements from there to the first element.
// A shape of more than kMaxDims dimensions gives an object that every operator refuses by name.
ALOFT_API aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t ndim, int dtype, const int64_t* strides,
                                     int64_t offset, int format, const int64_t* storage, uint64_t storage_ndim,
                                     void* data) {
  if ((!sizes && ndim) || (!storage && storage_ndim)) {
    aloftSetError("aclCreateTensor: the shape is a null pointer");
    return nullptr;
  }
  auto* tensor = new (std::nothrow) aclTensor;
  if (!tensor) return nullptr;
  aloft::Tensor& view = tensor->view;
  view.present = true;
  view.dtype = static_cast<DType>(dtype);
  view.format = static_cast<aloft::Format>(format);
  view.ndim = static_cast<int>(ndim);
  view.storage_ndim = static_cast<int>(storage_ndim < aloft::kMaxDims ? storage_ndim : aloft::kMaxDims);
  for (int i = 0; i < view.storage_ndim; ++i) view.storage[i] = storage[i];
  view.offset = offset;
  if (ndim <= aloft::kMaxDims) {
    int64_t dense = 1;
    for (int i = view.ndim - 1; i >= 0; --i) {
      view.sizes[i] = sizes[i];
      view.strides[i] = strides ? strides[i] : dense;
      dense *= sizes[i];
    }
  }
  if (data) {
    const int64_t bytes = view.dtype == DType::I4   ? offset / 2
                          : view.dtype == DType::U1 ? offset / 8
                                                    : offset * static_cast<int64_t>(aloft::dtype_size(view.dtype));
    view.data = static_cast<unsigned char*>(data) + bytes;
  }
  return tensor;
}

ALOFT_API int aclDestroyTensor(const aclTensor* tensor) { return destroy(tensor); }

ALOFT_API aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return make_list<aclTensorList>(value, size);
}

// A list owns its items.
ALOFT_API int aclDestroyTensorList(const aclTensorList* list) {
  if (list) {
    for (const aclTensor* item : list->items) delete item;
  }
  return destroy(list);
}

ALOFT_API aclScalar* aclCreateScalar(void* value, int dtype) {
  const size_t size = aloft::dtype_size(static_cast<DType>(dtype));
  if (!value || !size) {
    aloftSetError("aclCreateScalar: %s", value ? "dtype has no scalar form" : "the value is a null pointer");
    return nullptr;
  }
  auto* scalar = new (std::nothrow) aclScalar{static_cast<DType>(dtype), {}};
  if (scalar) std::memcpy(scalar->bytes, value, size);
  return scalar;
}

ALOFT_API int aclDestroyScalar(const aclScalar* scalar) { return destroy(scalar); }

ALOFT_API aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return make_list<aclScalarList>(value, size);
}

ALOFT_API int aclDestroyScalarList(const aclScalarList* list) {
  if (list) {
    for (const aclScalar* item : list->items) delete item;
  }
  return destroy(list);
}

ALOFT_API aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return make_array<aclIntArray>(value, size);
}
ALOFT_API int aclDestroyIntArray(const aclIntArray* array) { return destroy(array); }

ALOFT_API aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return make_array<aclFloatArray>(value, size);
}
ALOFT_API int aclDestroyFloatArray(const aclFloatArray* array) { return destroy(array); }

ALOFT_API aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return make_array<aclBoolArray>(value, size);
}
ALOFT_API int aclDestroyBoolArray(const aclBoolArray* array) { return destroy(array); }

ALOFT_API int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* ndim) {
  if (!tensor || !sizes || !ndim) return null_argument("aclGetViewShape");
  return copy_out(tensor->view.sizes, tensor->view.ndim, sizes, ndim);
}

ALOFT_API int aclGetViewStrides(const aclTensor* tensor, int64_t** strides, uint64_t* ndim) {
  if (!tensor || !strides || !ndim) return null_argument("aclGetViewStrides");
  return copy_out(tensor->view.strides, tensor->view.ndim, strides, ndim);
}

ALOFT_API int aclGetStorageShape(const aclTensor* tensor, int64_t** sizes, uint64_t* ndim) {
  if (!tensor || !sizes || !ndim) return null_argument("aclGetStorageShape");
  return copy_out(tensor->view.storage, tensor->view.storage_ndim, sizes, ndim);
}

ALOFT_API int aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  if (!tensor || !offset) return null_argument("aclGetViewOffset");
  *offset = tensor->view.offset;
  return aloft::kOk;
}

ALOFT_API int aclGetFormat(const aclTensor* tensor, int* format) {
  if (!tensor || !format) return null_argument("aclGetFormat");
  *format = static_cast<int>(tensor->view.format);
  return aloft::kOk;
}

ALOFT_API int aclGetDataType(const aclTensor* tensor, int* dtype) {
  if (!tensor || !dtype) return null_argument("aclGetDataType");
  *dtype = static_cast<int>(tensor->view.dtype);
  return aloft::kOk;
}
