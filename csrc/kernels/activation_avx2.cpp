#include "kernels/activation_impl.h"

namespace aloft {
const ActivationKernels kActivationKernelsAvx2 = ALOFT_ACTIVATION_KERNELS;
}  // namespace aloft
