#include "kernels/norm_impl.h"

namespace aloft {
const NormKernels kNormKernelsAvx2 = {rms_norm_rows<EightLanes>, layer_norm_rows};
}  // namespace aloft
