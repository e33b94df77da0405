#include "kernels/cpu.h"
#include "kernels/lines_impl.h"

namespace aloft {
namespace {

constexpr LineKernels kPortable[3] = {{first_extreme<float>, skip_worse<float>},
                                      {first_extreme<f16>, skip_worse<f16>},
                                      {first_extreme<bf16>, skip_worse<bf16>}};

}  // namespace

#if defined(__x86_64__)
extern const LineKernels kLinesAvx2[3], kLinesAvx512[2];
static const LineKernels* best() { return isa() == Isa::Portable ? kPortable : kLinesAvx2; }
static const LineKernels& of_halves(int which) {
  return isa() >= Isa::Avx512 ? kLinesAvx512[which - 1] : best()[which];
}
#else
static const LineKernels* best() { return kPortable; }
static const LineKernels& of_halves(int which) { return best()[which]; }
#endif

template <>
const LineKernels& line_kernels<float>() {
  static const LineKernels& kernels = best()[0];
  return kernels;
}
template <>
const LineKernels& line_kernels<f16>() {
  static const LineKernels& kernels = of_halves(1);
  return kernels;
}
template <>
const LineKernels& line_kernels<bf16>() {
  static const LineKernels& kernels = of_halves(2);
  return kernels;
}

}  // namespace aloft
