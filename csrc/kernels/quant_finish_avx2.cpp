#include "kernels/quant_finish_impl.h"

namespace aloft::quant_detail {
const Finish kFinishAvx2 = {combine_row, store_rows};
}  // namespace aloft::quant_detail
