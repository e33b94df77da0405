#include "torch/native.h"

#include <dlfcn.h>

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "torch/device.h"

namespace aloft::torch_route {
namespace {

// The first argument has one of the float dtypes that devices compute in.
bool device_float(const c10::IValue* arguments) {
  const at::Tensor& x = arguments[0].toTensor();
  const at::ScalarType type = x.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && plain(x);
}

// The fused training attention takes [batch, heads, tokens, head_dim] of one float dtype.
bool attention(const c10::IValue* arguments) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor& x = arguments[i].toTensor();
    if (!device_float(arguments + i) || x.dim() != 4 || x.numel() == 0) return false;
    if (x.scalar_type() != arguments[0].toTensor().scalar_type()) return false;
  }
  return true;
}

// Worth leaving fresh pages alone (aloftFillZero): a large block without holes.
bool large_block(const c10::IValue* arguments) {
  const at::Tensor& x = arguments[0].toTensor();
  return x.nbytes() >= 1u << 20 && x.is_contiguous() && plain(x);
}

const std::vector<Native>& natives() {
  static const std::vector<Native> table = [] {
    std::vector<Native> rows = {
        {"native_layer_norm", {"aclnnLayerNorm", "aclnnLayerNormBackward"}, device_float},
        {"native_layer_norm_backward", {"aclnnLayerNorm", "aclnnLayerNormBackward"}, device_float},
        {"scaled_dot_product_attention", {"aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad"}, attention},
        {"zero_", {"aclnnInplaceZero"}, large_block},
    };
    add_matmul(&rows);
    add_selection(&rows);
    return rows;
  }();
  return table;
}

bool exported(const char* name) {
  // The library torch_npu looks its operators up in: mapped at start-up, found by its name.
  static void* opapi = dlopen("libopapi.so", RTLD_LAZY | RTLD_NOLOAD);
  return opapi && dlsym(opapi, (std::string(name) + "GetWorkspaceSize").c_str());
}

// The entry for `name` whose functions are all there.
const Native* find(const c10::OperatorName& operator_name) {
  std::string name = operator_name.name.substr(6);
  if (!operator_name.overload_name.empty()) name += "." + operator_name.overload_name;
  for (const auto& native : natives()) {
    if (native.op != name) continue;
    for (const char* function : native.aclnn)
      if (!exported(function)) return nullptr;
    return &native;
  }
  return nullptr;
}

// torch_npu's adapters use the aclnn door: not while it wants operators compiled at run time.
bool door_open() {
  static const auto* jit = static_cast<const std::atomic<int>*>(dlsym(RTLD_DEFAULT, "aloftJitCompile"));
  return !jit || jit->load(std::memory_order_relaxed) == 0;
}

class NativeOrRoute final : public c10::OperatorKernel {
 public:
  NativeOrRoute(const c10::OperatorHandle& op, HostKernel host, Fits fits)
      : route_(op, host), native_(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)), fits_(fits) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - op.schema().arguments().size();
    if (door_open() && fits_(arguments)) return native_.callBoxed(op, keys, stack);
    route_(op, keys, stack);
  }

 private:
  RouteKernel route_;
  c10::SafeKernelFunction native_;
  Fits fits_;
};

// The device takes 16-bit inputs and states beside float32 weights: computes in the dtype of the weights.
void one_dtype(c10::IValue* arguments) {
  size_t weights = 1;  // input, [batch_sizes,] hx, params
  while (!arguments[weights].isTensorList()) ++weights;
  const bool states = !arguments[weights + 1].isBool();  // lstm has a list of states before the weights
  if (states) ++weights;
  const auto params = arguments[weights].toTensorList();
  if (params.empty()) return;
  const auto dtype = params.get(0).scalar_type();
  for (size_t i = 0; i < weights; ++i) {
    c10::IValue& value = arguments[i];
    if (value.isTensor() && value.toTensor().is_floating_point()) {
      value = value.toTensor().to(dtype);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(item.to(dtype));
      value = std::move(list);
    }
  }
}

// torch's definition of an operator in terms of others, or torch_npu's fused kernel where that fits.
class NativeOrComposite final : public c10::OperatorKernel {
 public:
  NativeOrComposite(const c10::OperatorHandle& op, c10::DispatchKey npu, c10::DispatchKey host, Fits fits)
      : composite_(op.getComputedKernelForDispatchKey(host)), fits_(fits) {
    if (fits) native_.emplace(op.getComputedKernelForDispatchKey(npu));
    one_hot_ = op.operator_name().name == "aten::one_hot";
    recurrent_ = op.operator_name().name == "aten::lstm" || op.operator_name().name == "aten::gru";
  }
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - op.schema().arguments().size();
    if (one_hot_ && arguments[0].toTensor().scalar_type() == at::kInt) {
      // torch has one_hot for int64 alone, the device for int32 as well.
      stack->at(stack->size() - 2) = arguments[0].toTensor().to(at::kLong);
      composite_.callBoxed(op, keys, stack);
      stack->back() = stack->back().toTensor().to(at::kInt);
      return;
    }
    if (recurrent_) one_dtype(stack->data() + stack->size() - op.schema().arguments().size());
    (fits_ && door_open() && fits_(arguments) ? *native_ : composite_).callBoxed(op, keys, stack);
  }

 private:
  std::optional<c10::SafeKernelFunction> native_;
  c10::SafeKernelFunction composite_;
  Fits fits_;
  bool recurrent_, one_hot_;
};

}  // namespace

bool plain(const at::Tensor& tensor) { return tensor.device().type() == kNpu && !internal_format(format_of(tensor)); }

c10::KernelFunction native_or_composite(const c10::OperatorHandle& op, c10::DispatchKey npu, c10::DispatchKey host) {
  const Native* native = find(op.operator_name());
  return c10::KernelFunction::makeFromBoxedFunctor(
      std::make_unique<NativeOrComposite>(op, npu, host, native ? native->fits : nullptr));
}

c10::KernelFunction torch_derivative(const c10::OperatorHandle& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<NativeOrComposite>(
      op, c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::AutogradCPU, nullptr));
}

c10::KernelFunction native_or_route(const c10::OperatorHandle& op, HostKernel host) {
  if (const Native* native = find(op.operator_name())) {
    return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<NativeOrRoute>(op, host, native->fits));
  }
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RouteKernel>(op, host));
}

}  // namespace aloft::torch_route
