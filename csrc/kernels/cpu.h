// Which instruction set the kernels of this process use: the best of what the processor and the
// operating system offer, or ALOFT_ISA=portable|avx2|avx512|amx. Each includes the ones before it. A value that is
// unknown or not available here is an error: isa() throws std::invalid_argument (at every call).
#pragma once
#include "kernels/api.h"

namespace aloft {

enum class Isa { Portable, Avx2, Avx512, Amx };  // ordered: compare with >=
// Amx: AVX-512 with VNNI, VBMI and BF16, and the tiles for bf16 and int8 (kernels/tiles.h), which the kernel of the
// operating system has let this process use.
ALOFT_KERNEL_API Isa isa();
ALOFT_KERNEL_API const char* isa_name(Isa isa);

// Processors this process may run on: affinity of its main thread, capped by the cgroup's quota; at least 1.
ALOFT_KERNEL_API int available_processors();

}  // namespace aloft
