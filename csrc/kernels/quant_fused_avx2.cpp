#include "kernels/quant_fused_impl.h"

namespace aloft {
const FusedQuantKernels kFusedQuantAvx2 = {norm_quant_rows, gated_quant_rows};
}  // namespace aloft
