#include "kernels/activation.h"

#include <algorithm>

#include "kernels/activation_impl.h"
#include "kernels/cpu.h"
#include "kernels/parallel.h"

namespace aloft {
namespace {

const ActivationKernels& kernels() {
  static const ActivationKernels portable = ALOFT_ACTIVATION_KERNELS;
#if defined(__x86_64__)
  static const ActivationKernels best = isa() >= Isa::Avx512 ? activation_kernels_avx512()
                                        : isa() == Isa::Avx2 ? kActivationKernelsAvx2
                                                             : portable;
#else
  static const ActivationKernels& best = portable;
#endif
  return best;
}

int dtype_index(DType dtype) { return dtype == DType::F32 ? 0 : dtype == DType::F16 ? 1 : 2; }

constexpr int64_t kGrainElements = 1 << 12;  // about two microseconds

}  // namespace

void activate(Activation kind, float alpha, DType dtype, const void* x, void* y, int64_t n) {
  const auto kernel = kernels().activate[static_cast<int>(kind)][dtype_index(dtype)];
  parallel_for(n, kGrainElements, [&](int64_t begin, int64_t end) { kernel(x, y, begin, end, alpha); });
}

void gated(const GatedArgs& args) {
  const auto kernel = kernels().gated[static_cast<int>(args.kind)][dtype_index(args.dtype)];
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, args.cols));
  if (args.rows == 1) {  // one long row: split its columns
    const int64_t item = args.dtype == DType::F32 ? 4 : 2;
    parallel_for(args.cols, kGrainElements, [&](int64_t begin, int64_t end) {
      GatedArgs part = args;
      part.cols = end - begin;
      part.act = static_cast<const char*>(args.act) + begin * args.step * item;
      part.gate = static_cast<const char*>(args.gate) + begin * args.step * item;
      part.y = static_cast<char*>(args.y) + begin * item;
      if (args.activated) part.activated = static_cast<char*>(args.activated) + begin * item;
      kernel(part, 0, 1);
    });
    return;
  }
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void gated_sums(Activation kind, DType dtype, const float* sums, int64_t rows, void* y, int64_t y_stride) {
  kernels().gated_sums[dtype_index(dtype)](kind, sums, rows, y, y_stride);
}

void swiglu_grad(const SwigluGradArgs& args) {
  const auto kernel = kernels().swiglu_grad[dtype_index(args.dtype)];
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, args.cols));
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

}  // namespace aloft
