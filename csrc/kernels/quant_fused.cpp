#include "kernels/quant_fused.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/quant_fused_impl.h"

namespace aloft {
namespace {

const FusedQuantKernels& kernels() {
  static const FusedQuantKernels portable = {norm_quant_rows, gated_quant_rows};
#if defined(__x86_64__)
  static const FusedQuantKernels& best = isa() == Isa::Portable ? portable : kFusedQuantAvx2;
#else
  static const FusedQuantKernels& best = portable;
#endif
  return best;
}

template <class Args>
void run(const Args& args, int64_t floats, void (*kernel)(const Args&, int64_t, int64_t, float*)) {
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(1, floats));
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> row;
    if (row.size() < static_cast<size_t>(floats)) row.resize(static_cast<size_t>(floats));
    kernel(args, begin, end, row.data());
  });
}

}  // namespace

void norm_quant(const NormQuantArgs& args) { run(args, 2 * args.cols, kernels().norm); }
void gated_quant(const GatedQuantArgs& args) { run(args, 4 * args.cols, kernels().gated); }

}  // namespace aloft
