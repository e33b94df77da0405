#include "torch/widen.h"

#include <ATen/core/List.h>

#include <cstring>

namespace aloft::torch_route {
namespace {

bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

}  // namespace

at::ScalarType half_argument(const Operator& op, const torch::jit::Stack& stack) {
  const c10::IValue* arguments = stack.data() + stack.size() - op.arguments;
  for (const auto& arg : op.special) {
    const c10::IValue& value = arguments[arg.index];
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (is_half(tensor)) return tensor.scalar_type();
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      if (list.empty()) continue;
      const at::Tensor first = list.get(0);
      if (is_half(first)) return first.scalar_type();
    }
  }
  return at::ScalarType::Undefined;
}

bool no_half_kernel(const char* text) {
  return std::strstr(text, "not implemented for 'Half'") || std::strstr(text, "not implemented for 'BFloat16'");
}

Widened::Widened(const Operator& op, torch::jit::Stack* stack, at::ScalarType half)
    : op_(op), stack_(stack), half_(half) {
  c10::IValue* arguments = stack->data() + stack->size() - op.arguments;
  const auto& schema = op.handle.schema().arguments();
  for (size_t i = 0; i < op.arguments; ++i) names_dtype_ |= schema[i].name() == "dtype" && !arguments[i].isNone();
  for (const auto& arg : op.special) {
    c10::IValue& value = arguments[arg.index];
    if (value.isTensor()) {
      value = widen(value.toTensor(), arg.written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(widen(item, arg.written));
      value = std::move(list);
    }
  }
}

at::Tensor Widened::widen(const at::Tensor& tensor, bool written) {
  if (!is_half(tensor)) {
    mixed_ |= tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.dim() > 0;
    return tensor;
  }
  for (const auto& pair : pairs_)
    if (pair.given.is_same(tensor)) return pair.wide;
  at::Tensor wide = tensor.to(at::kFloat);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) wide.unsafeGetTensorImpl()->set_wrapped_number(true);
  pairs_.push_back(Pair{tensor, wide, written});
  return wide;
}

at::Tensor Widened::narrowed(const at::Tensor& tensor, bool first) {
  if (!tensor.defined()) return tensor;
  for (const auto& pair : pairs_)
    if (pair.wide.is_same(tensor)) return pair.given;
  return tensor.scalar_type() == at::kFloat && !names_dtype_ && (first || !mixed_) ? tensor.to(half_) : tensor;
}

void Widened::narrow() {
  for (auto& pair : pairs_) {
    if (!pair.written) continue;
    if (!pair.given.sizes().equals(pair.wide.sizes())) pair.given.resize_(pair.wide.sizes());
    pair.given.copy_(pair.wide);
  }
  c10::IValue* results = stack_->data() + stack_->size() - op_.returns;
  for (size_t i = 0; i < op_.returns; ++i) {
    if (results[i].isTensor()) {
      results[i] = narrowed(results[i].toTensor(), i == 0);
    } else if (results[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : results[i].toTensorVector()) list.push_back(narrowed(item, i == 0));
      results[i] = std::move(list);
    }
  }
}

}  // namespace aloft::torch_route
