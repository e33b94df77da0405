// Puts the generic route in place: which operators take it is decided here, once, when libaloft_torch is installed.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "torch/device.h"
#include "torch/host_kernels.h"
#include "torch/legacy/legacy.h"
#include "torch/native.h"
#include "torch/route.h"

namespace aloft::torch_route {
namespace {

// Operators that only make or describe tensors: torch_npu's own kernels touch no element for them, and know
// things (storage descriptions, devices) that a CPU kernel does not.
const std::unordered_set<std::string_view> kStructural = {
    "view",
    "as_strided",
    "as_strided_",
    "_reshape_alias",
    "unfold",
    "unsqueeze",
    "squeeze",
    "set_",
    "resize_",
    "resize_as_",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "is_pinned",
    "_pin_memory",
    "record_stream",
    "_lazy_clone",
    "empty_with_format",
    "copy_memory_",
    "alias",
    "detach",
    "lift_fresh",
    "is_set_to",
    "_has_compatible_shallow_copy_type",
    "_backward",
    "set_data",
    "data",
    "requires_grad_",
    "_fw_primal",
    "_make_dual",
    "resize",
    "narrow",
    "_version",
    "output_nr",
    "is_leaf",
    "retain_grad",
    "from_file",
    "_efficientzerotensor",
    "_nested_view_from_buffer",
};

class QuietOverrides final : public c10::WarningHandler {
 public:
  explicit QuietOverrides(c10::WarningHandler* next) : next_(next) {}
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("verriding a previously registered kernel") == std::string::npos) next_->process(warning);
  }

 private:
  c10::WarningHandler* next_;
};

std::string_view base_name(const c10::OperatorName& name) {
  std::string_view base = name.name;
  base.remove_prefix(base.find("::") + 2);
  return base;
}

bool takes_route(const c10::OperatorHandle& op) {
  if (kStructural.count(base_name(op.operator_name()))) return false;
  // Composite kernels: one knows the names of the devices it works for, the other rounds at every step.
  if (base_name(op.operator_name()) == "mode" || base_name(op.operator_name()) == "_euclidean_dist") return true;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) || host_kernel(c10::toString(op.operator_name())))
    return true;
  // What torch_npu leaves to its copying fallback, and what has a CPU kernel behind a composite one.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// torch's own definition of an operator in terms of others. torch_npu replaces some of them by fused kernels.
bool composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

int install() {
  install_allocator();
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>();  // never taken back
  QuietOverrides quiet(c10::WarningUtils::get_warning_handler());
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  const auto put = [&](const c10::OperatorName& name, c10::DispatchKey key, c10::KernelFunction kernel) {
    kept->push_back(
        dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "aloft generic route"));
  };
  int count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.compare(0, 6, "aten::") != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !takes_route(*op)) continue;
    const bool autograd = op->hasKernelForDispatchKey(c10::DispatchKey::AutogradPrivateUse1);
    if (composite(*op)) {
      auto kernel = native_or_composite(*op, c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU);
      if (autograd)
        put(name, c10::DispatchKey::AutogradPrivateUse1,
            native_or_composite(*op, c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::AutogradCPU));
      put(name, c10::DispatchKey::PrivateUse1, std::move(kernel));
      continue;
    }
    // torch_npu's derivatives are written in terms of its own kernels, torch's in terms of the operators served here.
    if (autograd) put(name, c10::DispatchKey::AutogradPrivateUse1, torch_derivative(*op));
    const HostKernel host = host_kernel(c10::toString(name));
    if (!host && !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    auto kernel = native_or_route(*op, host);
    put(name, c10::DispatchKey::PrivateUse1, std::move(kernel));
    ++count;
  }
  return count;
}

}  // namespace
}  // namespace aloft::torch_route

// Installs the generic route over torch_npu's kernels; torch_npu must be imported. Returns the number of
// operators that take it, or -1 with the reason in *error. A second call does nothing.
ALOFT_API int aloftTorchInstall(const char** error) {
  static int installed = -1;
  static auto* reason = new std::string();
  if (installed >= 0) return installed;
  try {
    installed = aloft::torch_route::install();
    aloft::torch_legacy::provide_all();
  } catch (const std::exception& e) {
    *reason = e.what();
    *error = reason->c_str();
  }
  return installed;
}
