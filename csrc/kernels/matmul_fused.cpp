#include "kernels/matmul_fused.h"

#include <stdexcept>

#include "kernels/matmul_isa.h"

namespace aloft {
namespace {

using matmul_detail::kernels;

int64_t bytes_of(Element type) { return type == Element::F32 ? 4 : 2; }
DType dtype_of(Element type) {
  return type == Element::F32 ? DType::F32 : type == Element::F16 ? DType::F16 : DType::BF16;
}

char* at(const Operand& x, int64_t row, int64_t column) {
  return static_cast<char*>(const_cast<void*>(x.data)) + (row * x.row_stride + column) * bytes_of(x.type);
}

void require_rows(const Operand& x) {
  if (x.col_stride != 1) throw std::invalid_argument("the rows of a fused product's result must be dense");
}

}  // namespace

void matmul_gated(const Matmul& call, Activation kind) {
  require_rows(call.out);
  const Operand out = call.out;
  matmul(call, Halves::Gated, [&](const SumBlock& block) {
    gated_sums(kind, dtype_of(out.type), block.sums, block.rows, at(out, block.row, block.column[0]), out.row_stride);
  });
}

void matmul_residual(const Matmul& call) {
  require_rows(call.out), require_rows(call.addend);
  if (call.addend.type != call.out.type) throw std::invalid_argument("a residual has the type of the result");
  const Operand out = call.out, residual = call.addend;
  matmul(call, Halves::Adjacent, [&](const SumBlock& block) {
    const int columns = block.columns[0] + block.columns[1];
    const auto& isa = kernels();
    for (int64_t r = 0; r < block.rows; ++r) {
      alignas(64) char rounded[kSumColumns * sizeof(float)];
      alignas(64) float sum[kSumColumns] = {}, other[kSumColumns] = {};
      isa.narrow(out.type, block.sums + r * kSumColumns, 1, columns, rounded, 0);
      isa.widen(out.type, rounded, columns, sum);
      isa.widen(out.type, at(residual, block.row + r, block.column[0]), columns, other);
      for (int j = 0; j < kSumColumns; ++j) sum[j] = other[j] + sum[j];
      isa.narrow(out.type, sum, 1, columns, at(out, block.row + r, block.column[0]), 0);
    }
  });
}

}  // namespace aloft
