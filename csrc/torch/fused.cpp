#include "torch/fused.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace aloft::fused {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

void check_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like) {
  TORCH_CHECK_VALUE(t.device() == like.device(), op, ": ", name, " is on ", t.device(), ", the input on ",
                    like.device());
}

void check_like(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like) {
  TORCH_CHECK_VALUE(t.scalar_type() == like.scalar_type(), op, ": ", name, " must have the dtype of the model, ",
                    like.scalar_type(), ", got ", t.scalar_type());
  check_device(op, name, t, like);
}

void check_dtype(const char* op, const char* name, const at::Tensor& t) {
  const at::ScalarType type = t.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, op, ": ", name,
                    " must be float32, float16 or bfloat16, got ", type);
}

DType dtype_of(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat ? DType::F32 : t.scalar_type() == at::kHalf ? DType::F16 : DType::BF16;
}

void check_rows(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like, int64_t rows,
                int64_t width) {
  check_like(op, name, t, like);
  TORCH_CHECK_VALUE(t.dim() == 2 && t.size(0) == rows && t.size(1) == width && t.is_contiguous(), op, ": ", name,
                    " must be contiguous [", rows, ", ", width, "], got ", t.sizes(), " with strides ", t.strides());
}

void check_vector(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like, int64_t width) {
  check_like(op, name, t, like);
  TORCH_CHECK_VALUE(t.dim() == 1 && t.size(0) == width && t.is_contiguous(), op, ": ", name, " must be contiguous [",
                    width, "], got ", t.sizes());
}

int64_t rows_at_a_time(const char* op, int64_t rows, int64_t block_rows) {
  TORCH_CHECK_VALUE(block_rows >= 0, op, ": block_rows is ", block_rows, "; 0 is all rows at once, else positive");
  return block_rows ? std::min(rows, block_rows) : rows;
}

size_t padded_bytes(int64_t elements, DType dtype) {
  const size_t bytes = static_cast<size_t>(elements) * (dtype == DType::F32 ? 4 : 2);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor scratch(size_t bytes, const at::Tensor& like) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

}  // namespace aloft::fused
