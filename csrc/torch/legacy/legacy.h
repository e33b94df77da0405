// Operators of the legacy door that are computed with torch's CPU operators. torch_npu's adapters made the outputs and
// their shapes; a plan checks the call and returns the work, which runs in the order of the stream.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <vector>

#include "acl/acl_op_compiler/legacy.h"

namespace aloft::torch_legacy {

using legacy::Call;
using legacy::Operand;
using legacy::Plan;
using legacy::Work;

// Makes `plan` known for `type`.
void provide(const char* type, Plan plan);
void provide_all();
// Each file's operators.
void provide_shapes();
void provide_layers();
void provide_boxes();
void provide_suppression();
void provide_convolutions();
void provide_optimizers();
void provide_random();

// Raises unless the call has at least `inputs` and `outputs` operands.
void check(const Call& call, size_t inputs, size_t outputs);
// A CPU tensor over the memory of an operand, in the shape the caller knows; refuses internal formats. Values in host
// memory are copied: the caller's buffer does not outlive the call.
at::Tensor tensor(const Operand& operand);
at::Tensor input(const Call& call, size_t index);
at::Tensor output(const Call& call, size_t index);
bool has_input(const Call& call, size_t index);
// Small values in host memory.
std::vector<int64_t> integers(const Call& call, size_t index);
double number(const Call& call, size_t index);

int64_t integer(const Call& call, const char* attribute, int64_t otherwise);
double real(const Call& call, const char* attribute, double otherwise);
std::string text(const Call& call, const char* attribute, const char* otherwise);
std::vector<int64_t> integers(const Call& call, const char* attribute);
std::vector<float> reals(const Call& call, const char* attribute);

// 16-bit floats as float32, everything else as it is.
at::Tensor wide(const at::Tensor& tensor);

// Runs `f` with CPU kernels alone: no autograd, no autocast, whatever the calling thread has switched on.
void on_cpu(const std::function<void()>& f);
template <class F>
Work work(F f) {
  return [f = std::move(f)] { on_cpu(f); };
}

}  // namespace aloft::torch_legacy
