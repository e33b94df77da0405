// Stand-ins for the CPU kernels that torch does not have: operators it defines for accelerators only.
#pragma once
#include "torch/route.h"

namespace aloft::torch_route {

// The stand-in for `name`, or null where the CPU kernel of torch serves.
HostKernel host_kernel(const c10::OperatorName& name);

}  // namespace aloft::torch_route
