// The generic host route: one boxed kernel that serves an operator on the NPU with its CPU kernel.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "acl/launch.h"
#include "torch/alias.h"

namespace aloft::torch_route {

enum class ArgKind : uint8_t { Tensor, TensorList, OptionalTensorList, Generator, Device };

struct Arg {
  uint16_t index;
  ArgKind kind;
  bool written;
  bool overwritten;  // all of it, and never read
};

// Runs in place of the operator's CPU kernel, on CPU tensors. Null: torch has the kernel.
using HostKernel = const c10::KernelFunction*;

// What the route has to know of an operator, worked out once from its schema.
struct Operator {
  explicit Operator(const c10::OperatorHandle& op, HostKernel host = nullptr);

  c10::OperatorHandle handle;
  const char* name;
  size_t arguments, returns;
  c10::SmallVector<Arg, 6> special;  // arguments that are not passed through as they are
  HostKernel host;
  bool in_float;          // 16-bit floats are computed with as float32, as the device does
  bool random;            // draws random numbers
  bool has_generator;     // takes a generator
  bool host_tensors;      // may take CPU tensors of any shape beside NPU tensors
  bool several_devices;   // copies between NPUs
  uint32_t host_results;  // results that stay on the host, one bit each
  bool host_result;       // returns a value of the host (item, equal)
  bool writes;            // has an argument it writes to
};

// Calls the CPU kernel of `op` (or its stand-in) with the CPU tensors on the stack.
// 16-bit floats are widened where the operator asks for it, or where the CPU has no kernel for them.
void call_host(const Operator& op, torch::jit::Stack* stack);

// Puts `host` in the place of the generator argument, if there is one.
void set_generator(const Operator& op, const at::Generator& host, torch::jit::Stack* stack);

// The boxed kernel.
void route(const Operator& op, torch::jit::Stack* stack);

class RouteKernel final : public c10::OperatorKernel {
 public:
  explicit RouteKernel(const c10::OperatorHandle& op, HostKernel host = nullptr) : op_(op, host) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { route(op_, stack); }
  const Operator& info() const { return op_; }

 private:
  Operator op_;
};

// One call of an operator: its arguments replaced by CPU views, and its results carried back.
class Call {
 public:
  Call(const Operator& op, torch::jit::Stack* stack);
  // Replaces the arguments on the stack.
  void to_host();
  // Replaces the results on the stack.
  void to_device();
  bool on_device() const { return device_.has_value(); }
  c10::Device device() const { return *device_; }
  Views& views() { return views_; }
  const c10::IValue& generator() const { return generator_; }

 private:
  at::Tensor argument(const at::Tensor& tensor, const Arg& arg);
  at::Tensor result(at::Tensor&& tensor, bool stays);

  const Operator& op_;
  torch::jit::Stack* stack_;
  Views views_;
  std::optional<c10::Device> device_;     // where results go; empty: they stay on the host
  c10::IValue generator_;                 // the caller's
  c10::SmallVector<at::Tensor, 2> host_;  // CPU tensors among the arguments
};

// capture.cpp: true when the operator hands something to the host and so cannot be left to the stream.
bool needs_host(const Operator& op, Call& call, const torch::jit::Stack& stack);
// Records the call into the graph being captured on `stream`, or queues it.
void record(const Operator& op, Call& call, aclrtStream stream, torch::jit::Stack* stack);

}  // namespace aloft::torch_route
