#include "kernels/quantize_impl.h"

namespace aloft {
const QuantizeKernels kQuantizeKernelsAvx2 = ALOFT_QUANTIZE_KERNELS;
}  // namespace aloft
