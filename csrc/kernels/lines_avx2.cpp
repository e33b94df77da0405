#include "kernels/lines_impl.h"

namespace aloft {
extern const LineKernels kLinesAvx2[3];
const LineKernels kLinesAvx2[3] = {{first_extreme<float>, skip_worse<float>},
                                   {first_extreme<f16>, skip_worse<f16>},
                                   {first_extreme<bf16>, skip_worse<bf16>}};
}  // namespace aloft
