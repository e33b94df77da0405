// Matrix products: out = alpha * (a @ b) + beta * addend, batched, any strides.
//
// Arithmetic: every output element is a sum over steps of 32 values of k, from 0. A step sums the products of its even
// and of its odd k apart, each a chain of fp32 fused multiply-adds from 0 in the order of k, and adds the sum of the
// two to the total; the last step is filled up with zeros. Then alpha and beta in fp32, then one rounding to the output
// type. With bf16 operands denormals (operands, partial sums) count as zero up to there. This is what the tile
// instructions of x86 do (AMX, TDPBF16PS), and everything else follows: the order does not depend on the instruction
// set, the number of threads, the layout of the operands or the other rows of the batch, so equal inputs give
// equal bits along every path (the portable code of a target without a fused operation may round twice: fp32 only;
// the payload of NaNs is not specified).
#pragma once
#include <cstdint>

#include "kernels/api.h"

namespace aloft {

enum class Element : uint8_t { F32, F16, BF16 };

// How the right operand lies in memory. Panels: FRACTAL_NZ, 16 columns wide (Ascend format 29).
enum class WeightLayout : uint8_t {
  Strided,           // row_stride (along k), col_stride (along n), in elements
  Panels,            // stored as [K, N]: element (k, n) at ((n / 16) * padded_rows + k) * 16 + n % 16
  PanelsTransposed,  // stored as [N, K]: element (k, n) at ((k / 16) * padded_rows + n) * 16 + k % 16
};

constexpr int kMaxBatchDims = 6;

struct Operand {
  const void* data = nullptr;
  Element type = Element::F32;
  int64_t row_stride = 0, col_stride = 0;
  int64_t batch_stride[kMaxBatchDims] = {};
  WeightLayout layout = WeightLayout::Strided;  // `b` only
  int64_t padded_rows = 0;                      // rows of the stored matrix rounded up to 16; panels only
};

struct Matmul {
  int64_t m = 0, n = 0, k = 0;
  int batch_dims = 0;
  int64_t batch[kMaxBatchDims] = {};
  Operand a;       // [m, k]
  Operand b;       // [k, n]; the type of a
  Operand out;     // [m, n]; data is written; must not overlap a or b
  Operand addend;  // [m, n], strides may be 0; no data or beta == 0: not read; may be `out` itself
  float alpha = 1, beta = 0;
};

ALOFT_KERNEL_API void matmul(const Matmul& call);

}  // namespace aloft
