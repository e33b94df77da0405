// Which instruction set the kernels of this process use: the best of what the processor and the
// operating system offer, or ALOFT_ISA=portable|avx2|avx512 (refused if not available).
#pragma once

namespace aloft {

enum class Isa { Portable, Avx2, Avx512 };
Isa isa();
const char* isa_name(Isa isa);

}  // namespace aloft
