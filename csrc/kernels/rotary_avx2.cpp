#include "kernels/rotary_impl.h"

namespace aloft {
RotaryRow find_rotary_row_avx2(const RotaryArgs& args) { return find_rotary_row(args); }
}  // namespace aloft
