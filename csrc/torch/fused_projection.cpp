#include "torch/fused_projection.h"

#include <algorithm>
#include <vector>

#include "kernels/half.h"
#include "kernels/matmul_fused.h"
#include "kernels/quant_widen.h"
#include "kernels/quantize.h"
#include "opapi/work.h"
#include "torch/alias.h"

namespace aloft::fused {
namespace {

constexpr int64_t kFractalNz = 29, kPanel = 16, kLine = 32;
constexpr size_t kEach = 2;  // entries of a projection in `scales` and in `schemes`

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t padded(int64_t n) { return blocks(n, kPanel) * kPanel; }

Element element_of(DType dtype) {
  return dtype == DType::F32 ? Element::F32 : dtype == DType::F16 ? Element::F16 : Element::BF16;
}

// A whole FRACTAL_NZ tensor of `lines` bytes at least?
bool in_panels(const char* op, const char* name, const at::Tensor& weight, int64_t bytes) {
  const int64_t format = weight.device().type() == torch_route::kNpu ? torch_route::format_of(weight) : 2;
  if (!torch_route::internal_format(format)) return false;
  TORCH_CHECK_VALUE(format == kFractalNz && weight.is_contiguous() && weight.storage_offset() == 0, op, ": ", name,
                    " must be ND, or a whole FRACTAL_NZ tensor (format 29), got format ", format);
  TORCH_CHECK_VALUE(static_cast<int64_t>(weight.storage().nbytes()) >= bytes, op, ": ", name,
                    " is FRACTAL_NZ of another shape than ", weight.sizes());
  return true;
}

std::vector<float> floats(const void* values, DType dtype, int64_t count) {
  std::vector<float> made(values ? static_cast<size_t>(count) : 0);
  for (size_t i = 0; i < made.size(); ++i) {
    made[i] = dtype == DType::F32   ? static_cast<const float*>(values)[i]
              : dtype == DType::F16 ? to_float(static_cast<const f16*>(values)[i])
                                    : to_float(static_cast<const bf16*>(values)[i]);
  }
  return made;
}

// y += bias as tensors of T, the operator that follows a product with scales by group: that one takes no bias.
template <class T>
void add_bias(int64_t rows, const std::vector<float>& bias, void* y) {
  std::vector<float> rounded(bias);
  for (float& v : rounded) v = to_float(from_float<T>(v));
  const int64_t n = static_cast<int64_t>(bias.size());
  T* out = static_cast<T*>(y);
  for (int64_t i = 0; i < rows; ++i, out += n) {
    for (int64_t j = 0; j < n; ++j) out[j] = from_float<T>(to_float(out[j]) + rounded[static_cast<size_t>(j)]);
  }
}

}  // namespace

Schemes::Schemes(const char* op, const Scales& scales, at::IntArrayRef schemes, size_t projections)
    : op_(op), scales_(scales), schemes_(schemes) {
  const size_t wanted = projections * kEach, count = scales ? scales->size() : 0;
  TORCH_CHECK_VALUE(count == schemes.size() && (count == wanted || !count), op, ": scales and schemes need ", wanted,
                    " entries for ", projections, " projections, or none; got ", count, " and ", schemes.size());
}

Schemes::One Schemes::operator[](size_t projection) const {
  One one;
  if (schemes_.empty()) return one;
  const int64_t scheme = schemes_[kEach * projection];
  TORCH_CHECK_VALUE(scheme >= 0 && scheme <= static_cast<int64_t>(Scheme::WeightOnly), op_, ": schemes holds ", scheme,
                    "; 0 is float, 1 dynamic, 2 weight-only");
  one.scheme = static_cast<Scheme>(scheme);
  one.group = schemes_[kEach * projection + 1];
  one.scale = scales_->get(kEach * projection), one.offset = scales_->get(kEach * projection + 1);
  return one;
}

Projection::Projection(const char* op, const char* name, const at::Tensor& weight, const Optional& bias,
                       const Schemes::One& how, const at::Tensor& like, int64_t in, int64_t out)
    : scheme_(how.scheme), dtype_(dtype_of(like)), in_(in) {
  TORCH_CHECK_VALUE(weight.dim() == 2, op, ": ", name, " must have two dimensions, got ", weight.sizes());
  check_device(op, name, weight, like);
  if (scheme_ == Scheme::Float) {
    set_float(op, name, weight, like, out);
  } else {
    set_quantized(op, name, weight, how, like, out);
  }
  if (!given(bias)) return;
  const std::string of = std::string(name) + "'s bias";
  if (scheme_ == Scheme::Float || bias->scalar_type() != at::kFloat) {
    check_vector(op, of.c_str(), *bias, like, out_);
  } else {
    TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == out_ && bias->is_contiguous(), op, ": ", of,
                      " must be contiguous [", out_, "], got ", bias->sizes());
    check_device(op, of.c_str(), *bias, like);
  }
  bias_dtype_ = dtype_of(*bias);
  if (!is_meta(*bias)) bias_ = bias->const_data_ptr();
}

void Projection::set_float(const char* op, const char* name, const at::Tensor& weight, const at::Tensor& like,
                           int64_t out) {
  check_like(op, name, weight, like);
  TORCH_CHECK_VALUE(weight.size(0) == in_ && (out < 0 || weight.size(1) == out), op, ": ", name, " must be [in ", in_,
                    ", out", out < 0 ? std::string() : " " + std::to_string(out), "], got ", weight.sizes());
  out_ = weight.size(1);
  weight_.type = element_of(dtype_);
  weight_.row_stride = weight.stride(0), weight_.col_stride = weight.stride(1);
  if (in_panels(op, name, weight, padded(in_) * padded(out_) * 2)) {
    TORCH_CHECK_VALUE(dtype_ != DType::F32, op, ": ", name, " is FRACTAL_NZ, it must be float16 or bfloat16");
    weight_.layout = WeightLayout::Panels;
    weight_.padded_rows = padded(in_);
  }
  if (!is_meta(weight)) weight_.data = weight.const_data_ptr();
}

// int8 [in, out]; int4 packed in int32 [in, out / 8]; or the transposed view of [out, in] or [out, in / 8].
void Projection::set_quantized(const char* op, const char* name, const at::Tensor& weight, const Schemes::One& how,
                               const at::Tensor& like, int64_t out) {
  TORCH_CHECK_VALUE(dtype_ != DType::F32, op, ": quantised weights go with float16 and bfloat16 inputs, got float32");
  const bool packed = weight.scalar_type() == at::kInt;
  TORCH_CHECK_VALUE(packed || weight.scalar_type() == at::kChar, op, ": ", name,
                    " must be int8, or int4 packed in int32, got ", weight.scalar_type());
  const int64_t per = packed ? 8 : 1, item = packed ? 4 : 1;
  const bool plain = weight.is_contiguous() && weight.size(0) == in_;
  const bool turned = !plain && weight.t().is_contiguous() && weight.size(0) * per == in_;
  out_ = turned ? weight.size(1) : weight.size(1) * per;
  TORCH_CHECK_VALUE((plain || turned) && (out < 0 || out_ == out), op, ": ", name, " must be [in ", in_, ", out",
                    out < 0 ? std::string() : " " + std::to_string(out), "] or its transposed view, int4 with an ",
                    "eighth of the dimension that is contiguous; got ", weight.scalar_type(), " ", weight.sizes(),
                    " with strides ", weight.strides());
  quantized_.bits = packed ? 4 : 8;
  quantized_.layout = turned ? QuantLayout::Rows : QuantLayout::Cols;
  quantized_.stride = (turned ? in_ : out_) / per * item;
  const int64_t panels = blocks(weight.size(1) * item, kLine);
  if (in_panels(op, name, weight, panels * padded(in_) * kLine)) {
    TORCH_CHECK_VALUE(plain, op, ": ", name, " is a transposed FRACTAL_NZ tensor; it must be [in, out]");
    quantized_.layout = QuantLayout::Panels;
    quantized_.stride = padded(in_), quantized_.line = kLine;
  }
  group_ = how.group;
  TORCH_CHECK_VALUE(group_ >= 0 && group_ % 32 == 0, op, ": groups of ", group_, " inputs of ", name,
                    "; 0 is a scale an output, else a multiple of 32");
  const bool dynamic = scheme_ == Scheme::Dynamic;
  const auto factor = [&](const char* what, const at::Tensor& t) {
    const at::ScalarType type = t.scalar_type();
    const std::string of = std::string(name) + "'s " + what;
    TORCH_CHECK_VALUE(dynamic ? type == at::kFloat || type == at::kLong : type == like.scalar_type(), op, ": ", of,
                      " must be ", dynamic ? "float32 or int64" : "of the model's dtype", ", got ", type);
    const bool row = !group_ && t.dim() == 1 && t.size(0) == out_;
    const bool table = group_ && t.dim() == 2 && t.size(0) == blocks(in_, group_) && t.size(1) == out_;
    TORCH_CHECK_VALUE((row || table) && t.is_contiguous(), op, ": ", of, " must be contiguous [",
                      group_ ? std::to_string(blocks(in_, group_)) + ", " : std::string(), out_, "], got ", t.sizes());
    check_device(op, of.c_str(), t, like);
    return is_meta(t) ? nullptr : t.const_data_ptr();
  };
  TORCH_CHECK_VALUE(given(how.scale), op, ": ", name, " is quantised, its scale is missing");
  TORCH_CHECK_VALUE(!dynamic || !given(how.offset), op, ": ", name, " has an offset; dynamic products take none");
  scale_ = factor("scale", *how.scale);
  scale_dtype_ = how.scale->scalar_type() == at::kLong ? DType::I64 : dtype_of(*how.scale);
  if (given(how.offset)) offset_ = factor("offset", *how.offset);
  if (!is_meta(weight)) quantized_.data = static_cast<const uint8_t*>(weight.const_data_ptr());
}

size_t Projection::input_bytes(int64_t rows) const {
  return scheme_ == Scheme::Dynamic ? static_cast<size_t>(code_bytes(rows) + (rows * 4 + 63) / 64 * 64) : 0;
}

void Projection::take(const void* x, void* input, int64_t begin, int64_t end, int64_t rows) const {
  if (scheme_ != Scheme::Dynamic) return;
  DynamicQuantArgs args;
  args.rows = rows, args.cols = in_, args.dtype = dtype_, args.x = x, args.y = input;
  args.scale = reinterpret_cast<float*>(static_cast<char*>(input) + code_bytes(rows));
  begin == 0 && end == rows ? dynamic_quant(args) : dynamic_quant_rows(args, begin, end);
}

void Projection::take(const void* x, void* input, int64_t rows) const { take(x, input, 0, rows, rows); }

Matmul Projection::float_call(int64_t rows, const void* x, void* y) const {
  Matmul made;
  made.m = rows, made.n = out_, made.k = in_;
  made.a.data = x, made.a.type = weight_.type, made.a.row_stride = in_, made.a.col_stride = 1;
  made.b = weight_;
  made.out.data = y, made.out.type = weight_.type, made.out.row_stride = out_, made.out.col_stride = 1;
  if (bias_) {
    made.addend.data = bias_, made.addend.type = weight_.type, made.addend.col_stride = 1;
    made.beta = 1;
  }
  note_matmul(made);
  return made;
}

QuantMatmul Projection::quant_call(int64_t rows, const void* input, void* y, const float* bias) const {
  QuantMatmul c;
  c.m = rows, c.n = out_, c.k = in_;
  c.a = static_cast<const int8_t*>(input), c.a_stride = in_;
  c.row_scale = reinterpret_cast<const float*>(static_cast<const char*>(input) + code_bytes(rows));
  c.b = quantized_, c.group = group_, c.scale = scale_, c.scale_dtype = scale_dtype_;
  c.bias = bias, c.out_dtype = dtype_, c.out = y, c.out_stride = out_;
  return c;
}

void Projection::operator()(int64_t rows, const void* x, void* input, void* y) const {
  if (scheme_ == Scheme::Float) return matmul(float_call(rows, x, y));
  const std::vector<float> bias = floats(bias_, bias_dtype_, out_);
  const float* added = bias.empty() ? nullptr : bias.data();
  if (scheme_ == Scheme::Dynamic) {
    quant_matmul(quant_call(rows, input, y, group_ ? nullptr : added));
    if (group_ && added) (dtype_ == DType::F16 ? add_bias<f16> : add_bias<bf16>)(rows, bias, y);
    return;
  }
  WidenMatmul c;
  c.m = rows, c.n = out_, c.k = in_, c.a_dtype = c.out_dtype = dtype_;
  c.a = x, c.a_stride = in_, c.b = quantized_, c.group = group_;
  c.scale = scale_, c.zero = offset_, c.scale_dtype = scale_dtype_, c.bias = added;
  c.out = y, c.out_stride = out_;
  widen_matmul(c);
}

bool Projection::gates() const {
  if (scheme_ == Scheme::Float) return !bias_ && out_ % (2 * kPanel) == 0;
  if (group_ && bias_) return false;
  return scheme_ == Scheme::Dynamic && out_ % (2 * quant_gate_columns(quantized_)) == 0;
}

void Projection::gated(int64_t rows, const void* x, void* input, void* y) const {
  if (scheme_ == Scheme::Float) {
    Matmul call = float_call(rows, x, y);
    call.out.row_stride = out_ / 2;
    return matmul_gated(call);
  }
  const std::vector<float> bias = floats(bias_, bias_dtype_, out_);
  QuantMatmul call = quant_call(rows, input, y, bias.empty() ? nullptr : bias.data());
  call.out_stride = out_ / 2;
  quant_matmul_gated(call);
}

void norm_into(const RmsNormArgs& norm, const Projection& projection, void* input) {
  const auto take = [&](int64_t begin, int64_t end) { projection.take(norm.y, input, begin, end, norm.rows); };
  using Take = decltype(take);
  rms_norm(norm, {[](void* context, int64_t begin, int64_t end) { (*static_cast<Take*>(context))(begin, end); },
                  const_cast<void*>(static_cast<const void*>(&take))});
}

}  // namespace aloft::fused
