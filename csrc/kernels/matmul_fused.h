// Products with the operator that follows them: the product's sums never reach memory. Results are those of the two
// operators one after the other, bit for bit: the sums are rounded to the output type in between.
#pragma once
#include "kernels/activation.h"
#include "kernels/matmul.h"

namespace aloft {

// out[m, n / 2] = activation(g) * u with [g, u] = a @ b, u the columns from n / 2 on (the weights of gate and up side
// by side). n is a multiple of 32; out.col_stride is 1; no batch, no addend.
ALOFT_KERNEL_API void matmul_gated(const Matmul& call, Activation kind = Activation::Silu);

}  // namespace aloft
