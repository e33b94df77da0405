#include "kernels/convert_impl.h"

namespace aloft {
const ConvertKernels kConvertKernelsAvx2 = ALOFT_CONVERT_KERNELS;
}  // namespace aloft
