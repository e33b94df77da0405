#include "kernels/cpu.h"
#include "kernels/lines_impl.h"

namespace aloft {
namespace {

constexpr LineKernels kPortable[3] = {{first_extreme<float>, skip_worse<float>},
                                      {first_extreme<f16>, skip_worse<f16>},
                                      {first_extreme<bf16>, skip_worse<bf16>}};

}  // namespace

#if defined(__x86_64__)
extern const LineKernels kLinesAvx2[3];
static const LineKernels* best() { return isa() == Isa::Portable ? kPortable : kLinesAvx2; }
#else
static const LineKernels* best() { return kPortable; }
#endif

template <>
const LineKernels& line_kernels<float>() {
  static const LineKernels& kernels = best()[0];
  return kernels;
}
template <>
const LineKernels& line_kernels<f16>() {
  static const LineKernels& kernels = best()[1];
  return kernels;
}
template <>
const LineKernels& line_kernels<bf16>() {
  static const LineKernels& kernels = best()[2];
  return kernels;
}

}  // namespace aloft
