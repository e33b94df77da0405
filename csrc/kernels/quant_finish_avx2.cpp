#include "kernels/quant_finish_impl.h"

namespace aloft::quant_detail {
const Finish kFinishAvx2 = {combine_rows, store_rows, widen_any};
}  // namespace aloft::quant_detail
