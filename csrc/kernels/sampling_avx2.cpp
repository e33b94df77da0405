#include "kernels/sampling_impl.h"

namespace aloft {
const SamplingKernels kSamplingAvx2 = {widen, narrow, skip_to_above, mask_below, exps};
}  // namespace aloft
