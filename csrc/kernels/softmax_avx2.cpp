#include "kernels/softmax_impl.h"

namespace aloft {
const SoftmaxKernel kSoftmaxAvx2 = softmax_range;
}  // namespace aloft
