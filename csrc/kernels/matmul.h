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
// Memory of panels may hold the matrix in the form of kernels/compact.h instead; the product sees that by itself.

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

// What a fused operator makes of a product. Finished fp32 sums of some rows x 32 columns, in two halves of 16.
constexpr int kSumColumns = 32;
struct SumBlock {
  float* sums;        // [rows][kSumColumns]; may be overwritten
  int64_t row, rows;  // of the product; at most 32 rows where AMX is used, any number elsewhere
  int64_t column[2];  // of the product: the first of each half
  int columns[2];     // of each half, 0 to 16
};
// Called once for every element of the product, in the threads that computed it; must not throw.
using Epilogue = void (*)(const void* context, const SumBlock& block);

enum class Halves : uint8_t {
  Adjacent,  // columns 32 i .. 32 i + 16 and the 16 behind
  Gated,     // columns 16 i .. 16 i + 16 and those n / 2 further (gate and up of one weight); n a multiple of 32
};

// a @ b, without batch; out, addend, alpha and beta of the call are not used.
ALOFT_KERNEL_API void matmul(const Matmul& call, Halves halves, Epilogue epilogue, const void* context);

template <class F>
void matmul(const Matmul& call, Halves halves, const F& each) {
  matmul(call, halves, [](const void* f, const SumBlock& block) { (*static_cast<const F*>(f))(block); }, &each);
}

}  // namespace aloft
