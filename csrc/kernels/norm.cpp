#include "kernels/norm.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/norm_impl.h"
#include "kernels/parallel.h"

namespace aloft {
namespace {

const NormKernels& kernels() {
  static const NormKernels portable = {rms_norm_rows<EightLanes>, layer_norm_rows};
#if defined(__x86_64__)
  static const NormKernels best = isa() >= Isa::Avx512 ? NormKernels{rms_norm_rows_avx512, kNormKernelsAvx2.layer_norm}
                                  : isa() == Isa::Avx2 ? kNormKernelsAvx2
                                                       : portable;
#else
  static const NormKernels& best = portable;
#endif
  return best;
}

constexpr int64_t kGrainElements = 5 << 10;  // about two microseconds
constexpr int64_t kLeastElements = 5 << 9;   // worth handing out where all rows are one or two grains

template <class Args>
void run(const Args& args, void (*kernel)(const Args&, int64_t, int64_t, float*), RowsAfter after = {}) {
  const int64_t cols = std::max<int64_t>(1, args.cols), share = (args.rows + num_threads() - 1) / num_threads();
  const int64_t grain = std::max({int64_t{1}, kLeastElements / cols, std::min(kGrainElements / cols, share)});
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> row;
    if (row.size() < static_cast<size_t>(args.cols)) row.resize(static_cast<size_t>(args.cols));
    kernel(args, begin, end, row.data());
    if (after.call) after.call(after.context, begin, end);
  });
}

}  // namespace

void rms_norm(const RmsNormArgs& args) { run(args, kernels().rms_norm); }
void rms_norm(const RmsNormArgs& args, RowsAfter after) { run(args, kernels().rms_norm, after); }
void layer_norm(const LayerNormArgs& args) { run(args, kernels().layer_norm); }

}  // namespace aloft
