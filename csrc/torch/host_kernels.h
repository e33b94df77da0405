// Stand-ins for the CPU kernels that torch does not have: operators it defines for accelerators only, and
// random ones whose CPU kernel takes no generator.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/operator_name.h>

#include <string>

namespace aloft::torch_route {

// The stand-in for `name` ("aten::mm.dtype"), or null where the CPU kernel of torch serves. Operators without
// one of the two are not served.
const c10::KernelFunction* host_kernel(const std::string& name);

// The CPU generator a random stand-in draws from, set around its call.
const at::Generator& drawing_from();
class DrawFrom {
 public:
  explicit DrawFrom(at::Generator generator);
  ~DrawFrom();

 private:
  at::Generator before_;
};

}  // namespace aloft::torch_route
