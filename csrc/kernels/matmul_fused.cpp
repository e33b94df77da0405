#include "kernels/matmul_fused.h"

#include <stdexcept>

namespace aloft {
namespace {

int64_t bytes_of(Element type) { return type == Element::F32 ? 4 : 2; }
DType dtype_of(Element type) {
  return type == Element::F32 ? DType::F32 : type == Element::F16 ? DType::F16 : DType::BF16;
}

}  // namespace

void matmul_gated(const Matmul& call, Activation kind) {
  const Operand out = call.out;
  if (out.col_stride != 1) throw std::invalid_argument("the rows of a fused product's result must be dense");
  matmul(call, Halves::Gated, [&](const SumBlock& block) {
    const int64_t element = block.row * out.row_stride + block.column[0];
    void* y = static_cast<char*>(const_cast<void*>(out.data)) + element * bytes_of(out.type);
    gated_sums(kind, dtype_of(out.type), block.sums, block.rows, y, out.row_stride);
  });
}

}  // namespace aloft
