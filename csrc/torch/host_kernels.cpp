#include "torch/host_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/randperm_ops.h>

#include <array>
#include <tuple>
#include <unordered_map>

#include "torch/batch_norm.h"

namespace aloft::torch_route {
namespace {

using at::Scalar;
using at::ScalarType;
using at::SymInt;
using at::SymIntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

thread_local at::Generator drawing;

Tensor joined(std::initializer_list<Tensor> parts) {
  return at::_ops::cat::call(at::TensorList(parts.begin(), parts.size()), 1);
}

// ---- convolutions
Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                   SymInt groups) {
  return at::_ops::convolution::call(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                                     groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        SymIntArrayRef stride, SymIntArrayRef padding,
                                                        SymIntArrayRef dilation, bool transposed,
                                                        SymIntArrayRef output_padding, SymInt groups,
                                                        std::array<bool, 3> mask) {
  const std::array<SymInt, 1> bias_sizes = {grad.sym_size(1)};
  return at::_ops::convolution_backward::call(grad, input, weight, SymIntArrayRef(bias_sizes), stride, padding,
                                              dilation, transposed, output_padding, groups, mask);
}

Tensor conv_depthwise2d(const Tensor& self, const Tensor& weight, SymIntArrayRef, const OptionalTensor& bias,
                        SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation) {
  return at::_ops::conv2d::call(self, weight, bias, stride, padding, dilation, self.sym_size(1));
}

const Tensor& conv_depthwise2d_out(const Tensor& self, const Tensor& weight, SymIntArrayRef kernel,
                                   const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                                   SymIntArrayRef dilation, const Tensor& out) {
  const Tensor result = conv_depthwise2d(self, weight, kernel, bias, stride, padding, dilation);
  out.resize__symint(result.sym_sizes());
  const_cast<Tensor&>(out).copy_(result);
  return out;
}

// ---- matrix products with a wider result
Tensor wide_mm(const Tensor& a, const Tensor& b, ScalarType dtype) { return a.to(dtype).matmul(b.to(dtype)); }

Tensor& wide_mm_out(const Tensor& a, const Tensor& b, ScalarType dtype, Tensor& out) {
  const Tensor result = wide_mm(a, b, dtype);
  out.resize_(result.sizes());
  return out.copy_(result);
}

Tensor wide_addmm(const Tensor& self, const Tensor& a, const Tensor& b, ScalarType dtype, const Scalar& beta,
                  const Scalar& alpha) {
  return at::_ops::addmm::call(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}

Tensor& wide_addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, ScalarType dtype, const Scalar& beta,
                       const Scalar& alpha, Tensor& out) {
  const Tensor result = wide_addmm(self, a, b, dtype, beta, alpha);
  out.resize_(result.sizes());
  return out.copy_(result);
}

Tensor wide_baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, ScalarType dtype, const Scalar& beta,
                    const Scalar& alpha) {
  return at::_ops::baddbmm::call(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}

Tensor& wide_baddbmm_out(const Tensor& self, const Tensor& a, const Tensor& b, ScalarType dtype, const Scalar& beta,
                         const Scalar& alpha, Tensor& out) {
  const Tensor result = wide_baddbmm(self, a, b, dtype, beta, alpha);
  out.resize_(result.sizes());
  return out.copy_(result);
}

// Gradients of matmul, by the shapes the product itself broadcasts to.
std::tuple<Tensor, Tensor> matmul_backward(const Tensor& grad, const Tensor& self, const Tensor& other,
                                           std::array<bool, 2> mask) {
  if (!grad.defined()) return {};
  const bool row = self.dim() == 1, column = other.dim() == 1;
  const Tensor a = row ? self.unsqueeze(0) : self;
  const Tensor b = column ? other.unsqueeze(1) : other;
  Tensor g = grad;
  if (row && column) {
    g = g.reshape({1, 1});
  } else if (row) {
    g = g.unsqueeze(-2);
  } else if (column) {
    g = g.unsqueeze(-1);
  }
  Tensor grad_self, grad_other;
  if (mask[0]) {
    grad_self = g.matmul(b.transpose(-1, -2).conj()).sum_to_size(a.sizes()).reshape(self.sizes());
  }
  if (mask[1]) {
    grad_other = a.transpose(-1, -2).conj().matmul(g).sum_to_size(b.sizes()).reshape(other.sizes());
  }
  return {grad_self, grad_other};
}

// ---- random ones
Tensor masked_scale(const Tensor& self, const Tensor& mask, double scale) {
  return self.mul(mask.to(self.scalar_type())).mul_(scale);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) {
    return {input.clone(), at::_ops::empty_like::call(input, at::kBool, {}, {}, {}, {}).fill_(true)};
  }
  const double keep = 1 - p;
  Tensor mask = at::_ops::empty_like::call(input, at::kBool, {}, {}, {}, {});
  if (p == 1) {
    mask.fill_(false);
    return {input.mul(mask), mask};
  }
  mask.bernoulli_(keep, drawing);
  return {input.mul(mask).mul_(1 / keep), mask};
}

Tensor randperm(SymInt n, std::optional<ScalarType> dtype, std::optional<at::Layout> layout,
                std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return at::_ops::randperm_generator::call(n, drawing, dtype, layout, device, pin_memory);
}

Tensor& randperm_out(SymInt n, Tensor& out) { return at::_ops::randperm_generator_out::call(n, drawing, out); }

// ---- recurrent cells: workspaces hold the activated gates
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  Tensor gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias;
  if (hidden_bias && hidden_bias->defined()) gates = gates + *hidden_bias;
  const auto parts = gates.chunk(4, 1);
  const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, joined({in, forget, cell, out})};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const Tensor squashed = cy.tanh();
  Tensor grad_cell = at::_ops::empty_like::call(cx, {}, {}, {}, {}, {}).zero_();
  Tensor grad_out = grad_cell;
  if (grad_hy && grad_hy->defined()) {
    grad_out = *grad_hy * squashed;
    grad_cell = *grad_hy * out * (1 - squashed * squashed);
  }
  if (grad_cy && grad_cy->defined()) grad_cell = grad_cell + *grad_cy;
  const Tensor grad_gates = joined({grad_cell * cell * in * (1 - in), grad_cell * cx * forget * (1 - forget),
                                    grad_cell * in * (1 - cell * cell), grad_out * out * (1 - out)});
  return {grad_gates, grad_cell * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  Tensor from_input = input_gates, from_hidden = hidden_gates;
  if (input_bias && input_bias->defined()) from_input = from_input + *input_bias;
  if (hidden_bias && hidden_bias->defined()) from_hidden = from_hidden + *hidden_bias;
  const auto i = from_input.chunk(3, 1), h = from_hidden.chunk(3, 1);
  const Tensor reset = (i[0] + h[0]).sigmoid(), update = (i[1] + h[1]).sigmoid();
  const Tensor fresh = (i[2] + reset * h[2]).tanh();
  return {fresh + update * (hx - fresh), joined({reset, update, fresh, hx, h[2]})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const Tensor grad_update = grad_hy * (hx - fresh) * (1 - update) * update;
  const Tensor grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_reset = grad_fresh * hidden * (1 - reset) * reset;
  const Tensor grad_input = joined({grad_reset, grad_update, grad_fresh});
  const Tensor grad_hidden = joined({grad_reset, grad_update, grad_fresh * reset});
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

// ---- softmax of 16-bit floats with a float32 result, which torch defines for accelerators
template <Tensor (*softmax)(const Tensor&, int64_t, bool)>
Tensor wide_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  return softmax(half_to_float ? self.to(at::kFloat) : self, dim, false);
}

template <Tensor& (*softmax)(const Tensor&, int64_t, bool, Tensor&)>
Tensor& wide_softmax_out(const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  return softmax(half_to_float ? self.to(at::kFloat) : self, dim, false, out);
}

template <Tensor (*backward)(const Tensor&, const Tensor&, int64_t, ScalarType)>
Tensor wide_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, ScalarType input_dtype) {
  if (grad.scalar_type() == input_dtype) return backward(grad, output, dim, input_dtype);
  return backward(grad, output, dim, grad.scalar_type()).to(input_dtype);
}

// ---- copies
Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  const_cast<Tensor&>(dst).copy_(self);
  return dst;
}

template <class Function>
c10::KernelFunction kernel(Function function) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
}

}  // namespace

const at::Generator& drawing_from() { return drawing; }
DrawFrom::DrawFrom(at::Generator generator) : before_(std::move(drawing)) { drawing = std::move(generator); }
DrawFrom::~DrawFrom() { drawing = std::move(before_); }

const c10::KernelFunction* host_kernel(const std::string& name) {
  static const auto* table = new std::unordered_map<std::string, c10::KernelFunction>{
      {"aten::convolution_overrideable", kernel(&convolution)},
      {"aten::convolution_backward_overrideable", kernel(&convolution_backward)},
      {"aten::_conv_depthwise2d", kernel(&conv_depthwise2d)},
      {"aten::_conv_depthwise2d.out", kernel(&conv_depthwise2d_out)},
      {"aten::mm.dtype", kernel(&wide_mm)},
      {"aten::mm.dtype_out", kernel(&wide_mm_out)},
      {"aten::bmm.dtype", kernel(&wide_mm)},
      {"aten::bmm.dtype_out", kernel(&wide_mm_out)},
      {"aten::addmm.dtype", kernel(&wide_addmm)},
      {"aten::addmm.dtype_out", kernel(&wide_addmm_out)},
      {"aten::baddbmm.dtype", kernel(&wide_baddbmm)},
      {"aten::baddbmm.dtype_out", kernel(&wide_baddbmm_out)},
      {"aten::matmul_backward", kernel(&matmul_backward)},
      {"aten::_masked_scale", kernel(&masked_scale)},
      {"aten::native_dropout", kernel(&native_dropout)},
      {"aten::randperm", kernel(&randperm)},
      {"aten::randperm.out", kernel(&randperm_out)},
      {"aten::_thnn_fused_lstm_cell", kernel(&lstm_cell)},
      {"aten::_thnn_fused_lstm_cell_backward_impl", kernel(&lstm_cell_backward)},
      {"aten::_thnn_fused_gru_cell", kernel(&gru_cell)},
      {"aten::_thnn_fused_gru_cell_backward", kernel(&gru_cell_backward)},
      {"aten::_copy_from_and_resize", kernel(&copy_from_and_resize)},
      {"aten::_softmax", kernel(&wide_softmax<at::_ops::_softmax::call>)},
      {"aten::_softmax.out", kernel(&wide_softmax_out<at::_ops::_softmax_out::call>)},
      {"aten::_softmax_backward_data", kernel(&wide_softmax_backward<at::_ops::_softmax_backward_data::call>)},
      {"aten::_log_softmax", kernel(&wide_softmax<at::_ops::_log_softmax::call>)},
      {"aten::_log_softmax.out", kernel(&wide_softmax_out<at::_ops::_log_softmax_out::call>)},
      {"aten::_log_softmax_backward_data", kernel(&wide_softmax_backward<at::_ops::_log_softmax_backward_data::call>)},
      {"aten::batch_norm_stats", kernel(&batch_norm_stats)},
      {"aten::batch_norm_elemt", kernel(&batch_norm_elemt)},
      {"aten::batch_norm_elemt.out", kernel(&batch_norm_elemt_out)},
      {"aten::batch_norm_gather_stats_with_counts", kernel(&batch_norm_gather_stats_with_counts)},
      {"aten::batch_norm_backward_reduce", kernel(&batch_norm_backward_reduce)},
      {"aten::batch_norm_backward_elemt", kernel(&batch_norm_backward_elemt)},
  };
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace aloft::torch_route
