#include "torch/native.h"

#include <dlfcn.h>

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

const std::vector<Native>& natives() {
  static const std::vector<Native> table = [] {
    std::vector<Native> rows = {
        {"native_layer_norm", {"aclnnLayerNorm", "aclnnLayerNormBackward"}, device_float},
        {"native_layer_norm_backward", {"aclnnLayerNorm", "aclnnLayerNormBackward"}, device_float},
        {"scaled_dot_product_attention", {"aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad"}, nullptr},
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

class NativeOrRoute final : public c10::OperatorKernel {
 public:
  NativeOrRoute(const c10::OperatorHandle& op, HostKernel host, Fits fits)
      : route_(op, host), native_(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)), fits_(fits) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - op.schema().arguments().size();
    if (fits_(arguments)) return native_.callBoxed(op, keys, stack);
    route_(op, keys, stack);
  }

 private:
  RouteKernel route_;
  c10::SafeKernelFunction native_;
  Fits fits_;
};

}  // namespace

bool plain(const at::Tensor& tensor) { return tensor.device().type() == kNpu && !internal_format(format_of(tensor)); }

bool stays_native(const c10::OperatorName& name) {
  const Native* native = find(name);
  return native && !native->fits;
}

c10::KernelFunction native_or_route(const c10::OperatorHandle& op, HostKernel host) {
  if (const Native* native = find(op.operator_name())) {
    if (!native->fits) return {};
    return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<NativeOrRoute>(op, host, native->fits));
  }
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RouteKernel>(op, host));
}

}  // namespace aloft::torch_route
