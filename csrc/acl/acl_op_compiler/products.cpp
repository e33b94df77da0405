// MatMul, MatMulV2, BatchMatMul and BatchMatMulV2: what npu_linear and npu_bmmV2 call for packed operands.
//
// Inputs: x1 [..., m, k], x2 [..., k, n] and for the first two an optional bias [n]; an operand whose transpose
// attribute is set is stored with its last two dimensions exchanged. Batches broadcast. float32, float16 and
// bfloat16; sums are fp32 chains, rounded once (kernels/matmul.h).
#include <algorithm>
#include <cstdint>

#include "acl/acl_op_compiler/legacy.h"
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

// One operand as it is stored: batches of [rows, cols], in rows, in panels the kernel reads, or packed otherwise.
struct Stored {
  std::vector<int64_t> batch;
  int64_t rows = 0, cols = 0, count = 1;  // count: matrices in all
  bool packed = false, panels = false;
};

int64_t blocks(int64_t n) { return (n + 15) / 16; }

Stored stored(const char* role, const Operand& o) {
  const size_t ndim = o.dims.size();
  if (ndim < 2) refuse("%s has the shape %s, matrices have two dimensions or more", role, shape_text(o.dims).c_str());
  Stored s;
  s.batch.assign(o.dims.begin(), o.dims.end() - 2);
  s.rows = o.dims[ndim - 2], s.cols = o.dims[ndim - 1];
  if (s.batch.size() > static_cast<size_t>(kMaxBatchDims)) {
    refuse("%s has more than %d dimensions", role, 2 + kMaxBatchDims);
  }
  for (const int64_t d : s.batch) s.count *= d;
  s.packed = !row_major(o.storage_format);
  if (s.packed ? o.storage_format == o.format : o.storage_dims != o.dims) {
    refuse("%s has the shape %s and the storage %s of format %d, which do not go together", role,
           shape_text(o.dims).c_str(), shape_text(o.storage_dims).c_str(), static_cast<int>(o.storage_format));
  }
  if (!s.packed) return s;
  unpack(role, o, nullptr);  // refuses now what cannot be unpacked
  std::vector<int64_t> wanted = s.batch;
  wanted.insert(wanted.end(), {blocks(s.cols), blocks(s.rows), 16, 16});
  s.panels = o.storage_format == Format::FractalNZ && o.storage_dims == wanted;
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
  place("x2", b, t2, batch, b.panels ? blocks(b.cols) * blocks(b.rows) * 256 : b.rows * b.cols, &m.b);
  if (b.panels) {
    m.b.layout = t2 ? WeightLayout::PanelsTransposed : WeightLayout::Panels;
    m.b.padded_rows = blocks(b.rows) * 16;
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
  // Other layouts go by way of row-major memory.
  const bool b_rows = b.packed && !b.panels;
  if (!a.packed && !b_rows && !out.packed) return [m] { matmul(m); };
  return [=, left = x1, right = x2, result = y] {
    Matmul rows = m;
    std::vector<char> of_a, of_b, of_y;
    if (a.packed) {
      of_a.resize(static_cast<size_t>(a.count * a.rows * a.cols) * left.item());
      unpack("x1", left, of_a.data())();
      rows.a.data = of_a.data();
    }
    if (b_rows) {
      of_b.resize(static_cast<size_t>(b.count * b.rows * b.cols) * right.item());
      unpack("x2", right, of_b.data())();
      rows.b.data = of_b.data();
    }
    if (out.packed) {
      of_y.resize(static_cast<size_t>(out.count * out.rows * out.cols) * result.item());
      rows.out.data = of_y.data();
    }
    matmul(rows);
    if (out.packed) pack("the output", result, of_y.data())();
  };
}

}  // namespace

Work matrix_product(const Call& call) { return product(call, "transpose_x1", "transpose_x2"); }
Work batch_product(const Call& call) { return product(call, "adj_x1", "adj_x2"); }

}  // namespace legacy
}  // namespace aloft
