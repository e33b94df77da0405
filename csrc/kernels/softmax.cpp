#include "kernels/softmax.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/softmax_impl.h"

namespace aloft {
namespace {

SoftmaxKernel kernel() {
#if defined(__x86_64__)
  static const SoftmaxKernel best = isa() == Isa::Portable ? softmax_range : kSoftmaxAvx2;
#else
  static const SoftmaxKernel best = softmax_range;
#endif
  return best;
}

constexpr int64_t kGrainElements = 1 << 14;

}  // namespace

void softmax(const SoftmaxArgs& args) {
  const int64_t lines = args.outer * args.inner;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, args.n));
  parallel_for(lines, grain, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> scratch;
    const size_t need = static_cast<size_t>(args.n) * (args.inner == 1 ? 1 : 3);
    if (scratch.size() < need) scratch.resize(need);
    kernel()(args, begin, end, scratch.data());
  });
}

}  // namespace aloft
