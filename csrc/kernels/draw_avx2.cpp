#include "kernels/draw_impl.h"

namespace aloft {
const DrawKernels kDrawAvx2 = {divide, exponentials, sums_of_pieces};
}  // namespace aloft
