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
  Fits fits;                       // whether it takes these arguments
};

// native_matmul.cpp, native_selection.cpp: each adds its rows.
void add_matmul(std::vector<Native>* table);
void add_selection(std::vector<Native>* table);

// The kernel to register for `op`: the route; or one that asks per call whether the native kernel can take the
// arguments, with the route behind it.
c10::KernelFunction native_or_route(const c10::OperatorHandle& op, HostKernel host);
// The same for an operator that torch defines in terms of others, with its kernel for `host` behind the one for `npu`.
c10::KernelFunction native_or_composite(const c10::OperatorHandle& op, c10::DispatchKey npu, c10::DispatchKey host);
// The derivative torch has for CPU tensors, which serves any device.
c10::KernelFunction torch_derivative(const c10::OperatorHandle& op);

}  // namespace aloft::torch_route
