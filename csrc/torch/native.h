// Operators that libopapi implements: they stay with torch_npu's adapters, as far as the arguments fit.
#pragma once
#include <ATen/core/boxing/KernelFunction.h>

#include <string_view>
#include <vector>

#include "torch/route.h"

namespace aloft::torch_route {

using Fits = bool (*)(const c10::IValue* arguments);

// True for a tensor on the device in a row-major layout. With an internal format torch_npu's adapters leave aclnn for
// the legacy door, which has no such operator: those tensors belong to the route.
bool plain(const at::Tensor& tensor);

struct Native {
  std::string_view op;             // with its overload, as the dispatcher prints it
  std::vector<const char*> aclnn;  // what torch_npu's adapter calls
  Fits fits;                       // null: any arguments
};

// native_matmul.cpp, native_selection.cpp: each adds its rows.
void add_matmul(std::vector<Native>* table);
void add_selection(std::vector<Native>* table);

// The kernel to register for `op`: the route; or one that asks per call whether the native kernel can take
// the arguments, with the route behind it; or an invalid one when the native kernel always can.
// True when libopapi has all that torch_npu's own kernel for `name` calls, for any arguments.
bool stays_native(const c10::OperatorName& name);

c10::KernelFunction native_or_route(const c10::OperatorHandle& op, HostKernel host);

}  // namespace aloft::torch_route
