#include "kernels/quantize.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/quantize_impl.h"

namespace aloft {
namespace {

const QuantizeKernels& kernels() {
  static const QuantizeKernels portable = ALOFT_QUANTIZE_KERNELS;
#if defined(__x86_64__)
  static const QuantizeKernels best = isa() >= Isa::Avx512     ? quantize_kernels_avx512()
                                      : isa() == Isa::Portable ? portable
                                                               : kQuantizeKernelsAvx2;
#else
  static const QuantizeKernels& best = portable;
#endif
  return best;
}

constexpr int64_t kGrainElements = 1 << 14;
int64_t grain_of(int64_t cols) { return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, cols)); }

}  // namespace

void quantize(const StaticQuantArgs& args) {
  const auto kernel = kernels().fixed;
  parallel_for(args.rows, grain_of(args.cols), [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void dynamic_quant_rows(const DynamicQuantArgs& args, int64_t begin, int64_t end) {
  static thread_local std::vector<float> row;
  if (row.size() < static_cast<size_t>(args.cols)) row.resize(static_cast<size_t>(args.cols));
  kernels().dynamic(args, begin, end, row.data());
}

void dynamic_quant(const DynamicQuantArgs& args) {
  const auto rows = [&](int64_t begin, int64_t end) { dynamic_quant_rows(args, begin, end); };
  parallel_for(args.rows, grain_of(args.cols), rows);
}

float quantize_row_dynamic(const float* row, int64_t cols, QuantOut out, void* y) {
  return kernels().row_dynamic(row, cols, out, y);
}
void quantize_row_static(const float* row, int64_t cols, const float* scale, const float* offset, int64_t step,
                         bool divide, QuantOut out, void* y) {
  kernels().row_static(row, cols, scale, offset, step, divide, out, y);
}

}  // namespace aloft
