// MatMul, MatMulV2, BatchMatMul and BatchMatMulV2: what npu_linear and npu_bmmV2 call for FRACTAL_NZ operands.
//
// Inputs: x1 [..., m, k], x2 [..., k, n] and for the first two an optional bias [n]; an operand whose transpose
// attribute is set is stored with its last two dimensions exchanged. Batches broadcast. float32, float16 and
// bfloat16; sums are fp32 chains, rounded once (kernels/matmul.h).
#include <algorithm>
#include <cstdint>

#include "acl/acl_op_compiler/legacy.h"
#include "kernels/format.h"
#include "kernels/matmul.h"

namespace aloft {
namespace legacy {
namespace {

Element element_of(const char* role, const Operand& o) {
  switch (o.dtype) {
    case DType::F32:
      return Element::F32;
    case DType::F16:
      return Element::F16;
    case DType::BF16:
      return Element::BF16;
    default:
      refuse("%s must be float32, float16 or bfloat16, got the dtype %d", role, static_cast<int>(o.dtype));
  }
}

// One operand as it is stored: batches of [rows, cols], row-major or FRACTAL_NZ.
struct Stored {
  std::vector<int64_t> batch;
  int64_t rows = 0, cols = 0, count = 1;  // count: matrices in all
  bool nz = false;
  NzShape shape;  // of all matrices, where nz
};

Stored stored(const char* role, const Operand& o) {
  const size_t ndim = o.dims.size();
  if (ndim < 2) refuse("%s has the shape %s, matrices have two dimensions or more", role, shape_text(o.dims).c_str());
  Stored s;
  s.batch.assign(o.dims.begin(), o.dims.end() - 2);
  s.rows = o.dims[ndim - 2], s.cols = o.dims[ndim - 1];
  if (s.batch.size() > static_cast<size_t>(kMaxBatchDims))
    refuse("%s has more than %d dimensions", role, 2 + kMaxBatchDims);
  for (const int64_t d : s.batch) s.count *= d;
  if (o.storage_format == Format::FractalNZ) {
    const auto& storage = o.storage_dims;
    s.nz = true;
    s.shape.batch = s.count, s.shape.rows = s.rows, s.shape.cols = s.cols;
    if (storage.size() == ndim + 2) s.shape.c0 = storage.back(), s.shape.r0 = storage[storage.size() - 2];
    if (storage.size() != ndim + 2 || s.shape.c0 <= 0 || s.shape.r0 <= 0 || s.shape.elements() != o.elements()) {
      refuse("%s has the shape %s, its FRACTAL_NZ storage %s does not hold it", role, shape_text(o.dims).c_str(),
             shape_text(storage).c_str());
    }
  } else if (o.storage_dims != o.dims) {
    refuse("%s has the format %d; supported are ND (2) and FRACTAL_NZ (29)", role, static_cast<int>(o.storage_format));
  }
  return s;
}

// The operand of the kernel over row-major (or panel) memory, broadcast to `batch`.
void place(const char* role, const Stored& s, bool transposed, const std::vector<int64_t>& batch, int64_t one,
           aloft::Operand* to) {
  to->row_stride = transposed ? 1 : s.cols;
  to->col_stride = transposed ? s.cols : 1;
  int64_t step = one;
  for (size_t back = 0; back < batch.size(); ++back) {
    const size_t d = batch.size() - 1 - back;
    const int64_t size = back < s.batch.size() ? s.batch[s.batch.size() - 1 - back] : 1;
    if (size != batch[d] && size != 1) refuse("%s: the batch %s does not broadcast", role, shape_text(s.batch).c_str());
    to->batch_stride[d] = size == 1 ? 0 : step;
    step *= size;
  }
}

std::vector<int64_t> broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> both = a.size() < b.size() ? b : a;
  const std::vector<int64_t>& less = a.size() < b.size() ? a : b;
  for (size_t i = 0; i < less.size(); ++i) {
    int64_t& size = both[both.size() - less.size() + i];
    if (size == 1) size = less[i];
  }
  return both;  // place() refuses what does not fit
}

Work product(const legacy::Call& call, const char* transpose_x1, const char* transpose_x2) {
  if (call.inputs.size() < 2 || call.inputs.size() > 3 || call.outputs.size() != 1) {
    refuse("it has %zu inputs and %zu outputs; x1, x2, an optional bias and one output were expected",
           call.inputs.size(), call.outputs.size());
  }
  const Operand &x1 = call.inputs[0], &x2 = call.inputs[1], &y = call.outputs[0];
  const bool t1 = int_attr(call, transpose_x1, 0) != 0, t2 = int_attr(call, transpose_x2, 0) != 0;
  const Stored a = stored("x1", x1), b = stored("x2", x2), out = stored("the output", y);
  Matmul m;
  m.a.type = element_of("x1", x1), m.b.type = element_of("x2", x2), m.out.type = element_of("the output", y);
  if (m.a.type != m.b.type) refuse("x1 and x2 have different dtypes");
  if (m.out.type != m.a.type && m.out.type != Element::F32) refuse("the output must have the dtype of x1, or float32");
  m.m = t1 ? a.cols : a.rows, m.k = t1 ? a.rows : a.cols, m.n = t2 ? b.rows : b.cols;
  if (m.k != (t2 ? b.cols : b.rows)) {
    refuse("x1 %s and x2 %s (%s = %d, %s = %d) cannot be multiplied: the inner dimensions differ",
           shape_text(x1.dims).c_str(), shape_text(x2.dims).c_str(), transpose_x1, t1, transpose_x2, t2);
  }
  const std::vector<int64_t> batch = broadcast(a.batch, b.batch);
  std::vector<int64_t> expected = batch;
  expected.insert(expected.end(), {m.m, m.n});
  if (y.dims != expected) {
    refuse("the output has the shape %s, the product of x1 and x2 has %s", shape_text(y.dims).c_str(),
           shape_text(expected).c_str());
  }
  m.batch_dims = static_cast<int>(batch.size());
  std::copy(batch.begin(), batch.end(), m.batch);
  place("x1", a, t1, batch, a.rows * a.cols, &m.a);
  const bool panels = b.nz && b.shape.r0 == 16 && b.shape.c0 == 16;
  place("x2", b, t2, batch, panels ? b.shape.panels() * b.shape.padded_rows() * 16 : b.rows * b.cols, &m.b);
  if (panels) {
    m.b.layout = t2 ? WeightLayout::PanelsTransposed : WeightLayout::Panels;
    m.b.padded_rows = b.shape.padded_rows();
  }
  place("the output", out, false, batch, m.m * m.n, &m.out);
  m.a.data = x1.data, m.b.data = x2.data, m.out.data = y.data;
  if (call.inputs.size() == 3) {
    const Operand& bias = call.inputs[2];
    m.addend.type = element_of("the bias", bias);
    if (bias.storage_dims != bias.dims || bias.elements() != m.n || bias.dims.empty() || bias.dims.back() != m.n) {
      refuse("the bias has the shape %s, it must hold %lld elements", shape_text(bias.dims).c_str(),
             static_cast<long long>(m.n));
    }
    m.addend.data = bias.data, m.addend.col_stride = 1, m.beta = 1;
  }
  if (!y.elements()) return nullptr;
  // FRACTAL_NZ where the kernel wants rows goes by way of row-major memory.
  const bool a_rows = a.nz, b_rows = b.nz && !panels, y_rows = out.nz;
  if (!a_rows && !b_rows && !y_rows) return [m] { matmul(m); };
  const size_t item = x1.item(), y_item = y.item();
  return [=] {
    Matmul rows = m;
    std::vector<char> of_a, of_b, of_y;
    if (a_rows) {
      of_a.resize(static_cast<size_t>(a.count * a.rows * a.cols) * item);
      nz_to_rows(m.a.data, of_a.data(), a.shape, item);
      rows.a.data = of_a.data();
    }
    if (b_rows) {
      of_b.resize(static_cast<size_t>(b.count * b.rows * b.cols) * item);
      nz_to_rows(m.b.data, of_b.data(), b.shape, item);
      rows.b.data = of_b.data();
    }
    if (y_rows) {
      of_y.resize(static_cast<size_t>(out.count * out.rows * out.cols) * y_item);
      rows.out.data = of_y.data();
    }
    matmul(rows);
    if (y_rows) rows_to_nz(of_y.data(), y.data, out.shape, y_item);
  };
}

}  // namespace

Work matrix_product(const Call& call) { return product(call, "transpose_x1", "transpose_x2"); }
Work batch_product(const Call& call) { return product(call, "adj_x1", "adj_x2"); }

}  // namespace legacy
}  // namespace aloft
