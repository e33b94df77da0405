// Legacy operators of optimizers. (var, m, v, scalars in host memory, grad) -> (var, m, v), computed in float32.
#include <cmath>

#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

Work apply_adam(const Call& call) {
  check(call, 10, 3);
  const double beta1_power = number(call, 3), beta2_power = number(call, 4), lr = number(call, 5),
               beta1 = number(call, 6), beta2 = number(call, 7), epsilon = number(call, 8);
  const bool nesterov = integer(call, "use_nesterov", 0) != 0;
  return work([=, var = input(call, 0), old_m = input(call, 1), old_v = input(call, 2), grad = input(call, 9),
               to = output(call, 0), to_m = output(call, 1), to_v = output(call, 2)] {
    const at::Tensor g = wide(grad), m = wide(old_m), v = wide(old_v);
    const at::Tensor new_m = m.add(m.sub(g), beta1 - 1), new_v = v.add(g.square().sub(v), 1 - beta2);
    const double rate = lr * std::sqrt(1 - beta2_power) / (1 - beta1_power);
    const at::Tensor step = nesterov ? new_m.mul(beta1).add(g, 1 - beta1) : new_m;
    to.copy_(wide(var).sub(step.mul(rate).div(new_v.sqrt().add(epsilon))));
    to_m.copy_(new_m);
    to_v.copy_(new_v);
  });
}

// With decoupled weight decay. The powers are those before this step.
Work apply_adam_w(const Call& call) {
  check(call, 11, 3);
  const double beta1_power = number(call, 3), beta2_power = number(call, 4), lr = number(call, 5),
               decay = number(call, 6), beta1 = number(call, 7), beta2 = number(call, 8), epsilon = number(call, 9);
  const bool maximize = integer(call, "maximize", 0) != 0, amsgrad = integer(call, "amsgrad", 0) != 0;
  TORCH_CHECK(!amsgrad || has_input(call, 11), "amsgrad needs max_grad_norm");
  const at::Tensor largest = amsgrad ? input(call, 11) : at::Tensor();
  return work([=, var = input(call, 0), m = input(call, 1), v = input(call, 2), grad = input(call, 10),
               to = output(call, 0), to_m = output(call, 1), to_v = output(call, 2)] {
    const at::Tensor g = maximize ? wide(grad).neg() : wide(grad);
    const at::Tensor new_m = wide(m).mul(beta1).add(g, 1 - beta1);
    const at::Tensor new_v = wide(v).mul(beta2).add(g.square(), 1 - beta2);
    const at::Tensor second = amsgrad ? new_v.maximum(wide(largest)) : new_v;
    const at::Tensor below = second.div(1 - beta2_power * beta2).sqrt().add(epsilon);
    to.copy_(wide(var).mul(1 - lr * decay).sub(new_m.mul(lr / (1 - beta1_power * beta1)).div(below)));
    to_m.copy_(new_m);
    to_v.copy_(new_v);
    if (amsgrad) largest.copy_(second);
  });
}

}  // namespace

void provide_optimizers() {
  provide("ApplyAdamD", apply_adam);
  provide("ApplyAdamW", apply_adam_w);
}

}  // namespace aloft::torch_legacy
