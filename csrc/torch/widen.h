// CPU operators on 16-bit floats, computed in float32.
#pragma once
#include "torch/route.h"

namespace aloft::torch_route {

// The 16-bit float dtype among the tensor arguments, or Undefined.
at::ScalarType half_argument(const Operator& op, const torch::jit::Stack& stack);

// True for the texts with which torch says that it has no CPU kernel for a 16-bit float dtype.
bool no_half_kernel(const char* text);

// Replaces the 16-bit float tensors among the arguments on the stack by float32 copies.
class Widened {
 public:
  Widened(const Operator& op, torch::jit::Stack* stack, at::ScalarType half);
  // After the call: writes results back into written arguments, and narrows the others.
  void narrow();

 private:
  at::Tensor widen(const at::Tensor& tensor, bool written);
  at::Tensor narrowed(const at::Tensor& tensor, bool first);

  const Operator& op_;
  torch::jit::Stack* stack_;
  at::ScalarType half_;
  bool mixed_ = false;        // float32 stood beside it: only the first result has the 16-bit dtype
  bool names_dtype_ = false;  // the call says which dtype it wants: results stay as they are
  struct Pair {
    at::Tensor given, wide;
    bool written;
  };
  c10::SmallVector<Pair, 4> pairs_;
};

}  // namespace aloft::torch_route
