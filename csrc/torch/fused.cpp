#include "torch/fused.h"

#include <ATen/ops/empty.h>

#include "opapi/work.h"
#include "torch/alias.h"

namespace aloft::fused {
namespace {

constexpr int64_t kFractalNz = 29;
constexpr size_t kAlignment = 64;

Element element_of(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat ? Element::F32 : t.scalar_type() == at::kHalf ? Element::F16 : Element::BF16;
}

int64_t rounded_up(int64_t n) { return (n + 15) / 16 * 16; }

void check_like(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like) {
  TORCH_CHECK_VALUE(t.scalar_type() == like.scalar_type(), op, ": ", name, " must have the dtype of the model, ",
                    like.scalar_type(), ", got ", t.scalar_type());
  TORCH_CHECK_VALUE(t.device() == like.device(), op, ": ", name, " is on ", t.device(), ", the input on ",
                    like.device());
}

}  // namespace

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

Matmul Projection::call(int64_t rows, const void* x, void* y) const {
  Matmul made;
  made.m = rows, made.n = out, made.k = in;
  made.a.data = x, made.a.type = type, made.a.row_stride = in, made.a.col_stride = 1;
  made.b = weight;
  made.out.data = y, made.out.type = type, made.out.row_stride = out, made.out.col_stride = 1;
  if (bias) {
    made.addend.data = bias, made.addend.type = type, made.addend.col_stride = 1;
    made.beta = 1;
  }
  note_matmul(made);
  return made;
}

void Projection::operator()(int64_t rows, const void* x, void* y) const { matmul(call(rows, x, y)); }

Projection projection(const char* op, const char* name, const at::Tensor& weight, const Optional& bias,
                      const at::Tensor& like, int64_t in, int64_t out) {
  check_like(op, name, weight, like);
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.size(0) == in && (out < 0 || weight.size(1) == out), op, ": ", name,
                    " must be [in ", in, ", out", out < 0 ? std::string() : " " + std::to_string(out), "], got ",
                    weight.sizes());
  Projection p;
  p.in = in, p.out = weight.size(1), p.type = p.weight.type = element_of(like);
  p.weight.row_stride = weight.stride(0), p.weight.col_stride = weight.stride(1);
  const int64_t format = weight.device().type() == torch_route::kNpu ? torch_route::format_of(weight) : 2;
  if (torch_route::internal_format(format)) {
    TORCH_CHECK_VALUE(format == kFractalNz && like.scalar_type() != at::kFloat && weight.is_contiguous() &&
                          weight.storage_offset() == 0,
                      op, ": ", name, " must be ND, or a whole float16 or bfloat16 FRACTAL_NZ tensor (format 29), got ",
                      "format ", format);
    p.weight.layout = WeightLayout::Panels;
    p.weight.padded_rows = rounded_up(in);
    TORCH_CHECK_VALUE(static_cast<int64_t>(weight.storage().nbytes()) >= p.weight.padded_rows * rounded_up(p.out) * 2,
                      op, ": ", name, " is FRACTAL_NZ of another shape than ", weight.sizes());
  }
  if (weight.device().type() != c10::DeviceType::Meta) p.weight.data = weight.const_data_ptr();
  if (given(bias)) {
    check_vector(op, (std::string(name) + "'s bias").c_str(), *bias, like, p.out);
    if (bias->device().type() != c10::DeviceType::Meta) p.bias = bias->const_data_ptr();
  }
  return p;
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
