#include "torch/fused_mlp.h"

#include <algorithm>

#include "kernels/activation.h"

namespace aloft::fused {

GatedProduct::GatedProduct(const char* op, const at::Tensor& weight, const Optional& bias, const Schemes::One& how,
                           const at::Tensor& like, int64_t in)
    : product_(op, "gate_up_weight", weight, bias, how, like, in), dtype_(dtype_of(like)) {
  TORCH_CHECK_VALUE(product_.out() % 2 == 0, op,
                    ": gate_up_weight must have an even number of columns, gate and up, got ", product_.out());
}

void GatedProduct::operator()(int64_t rows, const void* x, void* input, void* sums, void* y) const {
  if (product_.gates()) return product_.gated(rows, x, input, y);
  product_(rows, x, input, sums);
  GatedArgs args;
  args.dtype = dtype_, args.rows = rows, args.cols = out(), args.stride = product_.out();
  args.act = sums, args.gate = shifted(sums, out(), dtype_), args.y = y;
  aloft::gated(args);
}

MlpStage::MlpStage(const MlpArguments& a) {
  check_dtype(kName, "attention", a.attention);
  TORCH_CHECK_VALUE(a.attention.dim() == 2 && a.attention.is_contiguous(), kName,
                    ": attention must be contiguous [tokens, heads * head_dim], got ", a.attention.sizes());
  TORCH_CHECK_VALUE(a.residual.dim() == 2, kName, ": residual must be [tokens, width], got ", a.residual.sizes());
  tokens_ = a.attention.size(0), hidden_ = a.residual.size(1);
  check_rows(kName, "residual", a.residual, a.attention, tokens_, hidden_);
  check_vector(kName, "norm_weight", a.norm_weight, a.attention, hidden_);
  o_ = Projection(kName, "o_weight", a.o_weight, a.o_bias, a.o, a.attention, a.attention.size(1), hidden_);
  gated_ = GatedProduct(kName, a.gate_up_weight, a.gate_up_bias, a.gate_up, a.attention, hidden_);
  down_ = Projection(kName, "down_weight", a.down_weight, a.down_bias, a.down, a.attention, gated_.out(), hidden_);
  rows_ = rows_at_a_time(kName, tokens_, a.block_rows);
  norm_.cols = norm_.x_stride = hidden_;
  norm_.dtype = norm_.gamma_dtype = dtype_of(a.attention);
  norm_.epsilon = static_cast<float>(a.norm_eps);
  if (a.attention.device().type() == c10::DeviceType::Meta) return;
  attention_ = a.attention.const_data_ptr();
  norm_.residual = a.residual.const_data_ptr(), norm_.gamma = a.norm_weight.const_data_ptr();
}

size_t MlpStage::scratch_bytes() const {
  const DType dtype = norm_.dtype;
  return padded_bytes(rows_ * hidden_, dtype) + padded_bytes(rows_ * gated_.out(), dtype) +
         padded_bytes(gated_.sums(rows_), dtype) +
         std::max({o_.input_bytes(rows_), gated_.product().input_bytes(rows_), down_.input_bytes(rows_)});
}

void MlpStage::put(const at::Tensor& hidden, const at::Tensor& residual, void* scratch) {
  const DType dtype = norm_.dtype;
  norm_.x = norm_.y = scratch;
  norm_.sum = residual.data_ptr();
  activated_ = static_cast<char*>(scratch) + padded_bytes(rows_ * hidden_, dtype);
  sums_ = static_cast<char*>(activated_) + padded_bytes(rows_ * gated_.out(), dtype);
  input_ = static_cast<char*>(sums_) + padded_bytes(gated_.sums(rows_), dtype);
  out_ = hidden.data_ptr();
}

aclError MlpStage::operator()() const {
  const DType dtype = norm_.dtype;
  for (int64_t t = 0; t < tokens_; t += rows_) {
    RmsNormArgs norm = norm_;
    norm.rows = std::min(rows_, tokens_ - t);
    norm.residual = shifted(norm_.residual, t * hidden_, dtype);
    norm.sum = shifted(norm_.sum, t * hidden_, dtype);
    const void* attention = shifted(attention_, t * o_.in(), dtype);
    o_.take(attention, input_, norm.rows);
    o_(norm.rows, attention, input_, norm.y);
    norm_into(norm, gated_.product(), input_);
    gated_(norm.rows, norm.y, input_, sums_, activated_);
    down_.take(activated_, input_, norm.rows);
    down_(norm.rows, activated_, input_, shifted(out_, t * hidden_, dtype));
  }
  return kOk;
}

}  // namespace aloft::fused
