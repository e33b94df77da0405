// Matrix products of the aclnn door.
//
// dtypes: the operands are float32, float16 or bfloat16, both the same; out is of that dtype or float32; the
// addend (bias, self) is any of the three. Everything else (float64, integers, complex) is refused with
// kParamInvalid. Products are accumulated in fp32 and rounded once, whatever cube_math_type says: it allows
// hardware to use less (HF32, fp16), which this device has no reason to.
#include "opapi/matmul.h"

#include <algorithm>

#include "opapi/work.h"

namespace aloft {
namespace {

// An operand as a batch of matrices: the last two dimensions, those in front of them, and their strides.
struct Matrices {
  int64_t rows, cols, row_stride, col_stride;
  int batch_dims = 0;
  int64_t batch[kMaxDims] = {}, batch_stride[kMaxDims] = {};
};

Matrices matrices_of(const Tensor& t) {
  Matrices m{t.size(-2), t.size(-1), t.stride(-2), t.stride(-1), t.ndim - 2};
  for (int d = 0; d < m.batch_dims; ++d) {
    m.batch[d] = t.sizes[d];
    m.batch_stride[d] = t.sizes[d] == 1 ? 0 : t.strides[d];
  }
  return m;
}

void fill_operand(const char* name, const Tensor& t, const Matrices& m, int batch_dims, Operand* to) {
  to->data = t.data;
  to->type = element_of(name, t);
  to->row_stride = m.row_stride;
  to->col_stride = m.col_stride;
  for (int d = 0; d < batch_dims; ++d) {
    const int own = d - (batch_dims - m.batch_dims);
    to->batch_stride[d] = own < 0 ? 0 : m.batch_stride[own];
  }
}

int64_t rounded_up(int64_t n) { return (n + 15) / 16; }

Tensor with_dims(const Tensor& t, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides) {
  Tensor view = t;
  view.ndim = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), view.sizes);
  std::copy(strides.begin(), strides.end(), view.strides);
  return view;
}

}  // namespace

Element element_of(const char* name, const Tensor& t) {
  switch (t.dtype) {
    case DType::F32:
      return Element::F32;
    case DType::F16:
      return Element::F16;
    case DType::BF16:
      return Element::BF16;
    default:
      fail(kParamInvalid, "%s must be float32, float16 or bfloat16, got %s", name, dtype_name(t.dtype));
  }
}

PanelView panel_view(const char* name, const Tensor& t) {
  const int n = t.storage_ndim;
  ALOFT_REQUIRE(t.format == Format::FractalNZ, "%s has the format %s; matrix products take ND and FRACTAL_NZ", name,
                format_name(t.format));
  ALOFT_REQUIRE(t.ndim >= 2 && n >= 4 && t.storage[n - 1] == 16 && t.storage[n - 2] == 16,
                "%s is FRACTAL_NZ of shape %s, its storage must be [..., columns / 16, rows / 16, 16, 16]", name,
                t.shape_text().c_str());
  ALOFT_REQUIRE(t.offset == 0, "%s is a slice of a FRACTAL_NZ tensor, which has no meaning", name);
  const int64_t rows = t.size(-2), cols = t.size(-1), panels = t.storage[n - 4], blocks = t.storage[n - 3];
  const bool fits_plain = panels == rounded_up(cols) && blocks == rounded_up(rows);
  const bool fits_transposed = panels == rounded_up(rows) && blocks == rounded_up(cols);
  const bool looks_transposed = t.stride(-2) == 1 && t.stride(-1) == rows;
  ALOFT_REQUIRE(fits_plain || fits_transposed, "%s: the FRACTAL_NZ storage [.., %lld, %lld, 16, 16] does not hold %s",
                name, static_cast<long long>(panels), static_cast<long long>(blocks), t.shape_text().c_str());
  const bool looks_plain = t.stride(-1) == 1 && t.stride(-2) == cols;
  ALOFT_REQUIRE(
      looks_plain || looks_transposed || rows == 1 || cols == 1,
      "%s is a view with strides [%lld, %lld] of a FRACTAL_NZ tensor of shape %s; only its transposition can be used",
      name, static_cast<long long>(t.stride(-2)), static_cast<long long>(t.stride(-1)), t.shape_text().c_str());
  const bool transposed = fits_transposed && (!fits_plain || (looks_transposed && !looks_plain) ||
                                              (looks_transposed && looks_plain && rows == 1 && cols > 1));
  return {transposed ? WeightLayout::PanelsTransposed : WeightLayout::Panels, blocks * 16};
}

Work plan_matmul(const char* a_name, const Tensor& a_given, const char* b_name, const Tensor& b_given,
                 const Tensor& out_given, const Tensor& addend_given, double beta, double alpha) {
  ALOFT_REQUIRE(a_given.ndim >= 1 && b_given.ndim >= 1, "%s %s and %s %s need at least one dimension", a_name,
                a_given.shape_text().c_str(), b_name, b_given.shape_text().c_str());
  element_of(a_name, a_given);
  element_of(b_name, b_given);
  require(a_given.dtype == b_given.dtype, "%s must have the dtype of %s (%s), got %s", b_name, a_name,
          dtype_name(a_given.dtype), dtype_name(b_given.dtype));
  require(element_of("out", out_given) == Element::F32 || out_given.dtype == a_given.dtype,
          "out must have the dtype of %s (%s) or be float32, got %s", a_name, dtype_name(a_given.dtype),
          dtype_name(out_given.dtype));
  // One-dimensional operands are a row on the left and a column on the right; their dimension is not in the result.
  const bool row = a_given.ndim == 1, column = b_given.ndim == 1;
  const Tensor a = row ? with_dims(a_given, {1, a_given.size(0)}, {0, a_given.stride(0)}) : a_given;
  const Tensor b = column ? with_dims(b_given, {b_given.size(0), 1}, {b_given.stride(0), 0}) : b_given;
  ALOFT_REQUIRE(a.size(-1) == b.size(-2), "%s %s and %s %s cannot be multiplied: the inner dimensions differ", a_name,
                a_given.shape_text().c_str(), b_name, b_given.shape_text().c_str());
  Matmul call;
  call.m = a.size(-2), call.n = b.size(-1), call.k = a.size(-1);
  const Matrices left = matrices_of(a);
  Matrices right = matrices_of(b);
  const int dims = std::max(left.batch_dims, right.batch_dims);
  require(dims <= kMaxBatchDims, "%s and %s have %d batch dimensions, at most %d are supported", a_name, b_name, dims,
          kMaxBatchDims);
  call.batch_dims = dims;
  Tensor expected;  // the shape of out
  for (int d = 0; d < dims; ++d) {
    const int in_left = d - (dims - left.batch_dims), in_right = d - (dims - right.batch_dims);
    const int64_t l = in_left < 0 ? 1 : left.batch[in_left], r = in_right < 0 ? 1 : right.batch[in_right];
    ALOFT_REQUIRE(l == r || l == 1 || r == 1, "the batch dimensions of %s %s and %s %s do not broadcast", a_name,
                  a_given.shape_text().c_str(), b_name, b_given.shape_text().c_str());
    call.batch[d] = expected.sizes[expected.ndim++] = l == 1 ? r : l;
  }
  if (!row) expected.sizes[expected.ndim++] = call.m;
  if (!column) expected.sizes[expected.ndim++] = call.n;
  ALOFT_REQUIRE(out_given.same_shape(expected), "out has the shape %s, the product of %s %s and %s %s has %s",
                out_given.shape_text().c_str(), a_name, a_given.shape_text().c_str(), b_name,
                b_given.shape_text().c_str(), expected.shape_text().c_str());
  // Views of out and addend with both matrix dimensions.
  const auto as_matrices = [&](const Tensor& t) {
    Tensor view = t;
    view.ndim = 0;
    int from = 0;
    for (int d = 0; d < dims + 2; ++d) {
      const bool removed = (d == dims && row) || (d == dims + 1 && column);
      view.sizes[view.ndim] = removed ? 1 : t.sizes[from];
      view.strides[view.ndim++] = removed ? 0 : t.strides[from];
      from += !removed;
    }
    return view;
  };
  fill_operand(a_name, a, left, dims, &call.a);
  if (b.format == Format::FractalNZ && !column) {
    const PanelView panels = panel_view(b_name, b);
    int64_t one = b.storage[b.storage_ndim - 4] * panels.padded_rows * 16;
    for (int d = right.batch_dims - 1; d >= 0; --d) {
      ALOFT_REQUIRE(d + 4 < b.storage_ndim && b.storage[d] == right.batch[d],
                    "%s: its FRACTAL_NZ storage does not have the batch dimensions of its shape %s", b_name,
                    b_given.shape_text().c_str());
      right.batch_stride[d] = right.batch[d] == 1 ? 0 : one;
      one *= right.batch[d];
    }
    fill_operand(b_name, b, right, dims, &call.b);
    call.b.layout = panels.layout;
    call.b.padded_rows = panels.padded_rows;
  } else {
    require(!is_internal(b.format), "%s has the format %s, a vector must be ND", b_name, format_name(b.format));
    fill_operand(b_name, b, right, dims, &call.b);
  }
  fill_operand("out", out_given, matrices_of(as_matrices(out_given)), dims, &call.out);
  call.alpha = static_cast<float>(alpha);
  if (addend_given && beta != 0) {
    Tensor addend = addend_given;
    element_of("self", addend);
    require(addend.ndim <= expected.ndim, "self has %d dimensions, out has %d", addend.ndim, expected.ndim);
    Tensor spread = expected;
    for (int d = 0; d < expected.ndim; ++d) {
      const int own = d - (expected.ndim - addend.ndim);
      const int64_t size = own < 0 ? 1 : addend.sizes[own];
      ALOFT_REQUIRE(size == 1 || size == expected.sizes[d], "self %s does not broadcast to %s",
                    addend.shape_text().c_str(), expected.shape_text().c_str());
      spread.strides[d] = size == 1 ? 0 : addend.strides[own];
    }
    spread.data = addend.data;
    spread.dtype = addend.dtype;
    fill_operand("self", spread, matrices_of(as_matrices(spread)), dims, &call.addend);
    call.beta = static_cast<float>(beta);
  }
  if (!out_given.numel()) return nullptr;
  return [call] {
    note_matmul(call);
    matmul(call);
  };
}

namespace {

double value_of(const char* name, const aclScalar* scalar) {
  if (!scalar) fail(kParamNull, "%s is missing", name);
  return scalar->as_double();
}

Work plan_product(const char* a_name, const aclTensor* a, const char* b_name, const aclTensor* b,
                  const aclTensor* out_tensor, int dims) {
  const Tensor A = in(a_name, a), B = in(b_name, b, Layout::Any), C = out("out", out_tensor);
  if (dims) {
    ALOFT_REQUIRE(A.ndim == dims && B.ndim == dims, "%s %s and %s %s must have %d dimensions", a_name,
                  A.shape_text().c_str(), b_name, B.shape_text().c_str(), dims);
  }
  return plan_matmul(a_name, A, b_name, B, C);
}

Work plan_sum(const aclTensor* self, const char* a_name, const aclTensor* a, const char* b_name, const aclTensor* b,
              const aclScalar* beta, const aclScalar* alpha, const aclTensor* out_tensor, int dims) {
  const Tensor S = in("self", self), A = in(a_name, a), B = in(b_name, b, Layout::Any), C = out("out", out_tensor);
  ALOFT_REQUIRE(A.ndim == dims && B.ndim == dims, "%s %s and %s %s must have %d dimensions", a_name,
                A.shape_text().c_str(), b_name, B.shape_text().c_str(), dims);
  return plan_matmul(a_name, A, b_name, B, C, S, value_of("beta", beta), value_of("alpha", alpha));
}

void require_panels(const char* name, const aclTensor* t) {
  const Tensor B = in(name, t, Layout::Any);
  require(B.format == Format::FractalNZ, "%s must be FRACTAL_NZ, got %s", name, format_name(B.format));
}

}  // namespace

ALOFT_ACLNN(Mm, (const aclTensor* self, const aclTensor* mat2, const aclTensor* out, int8_t cube_math_type),
            (self, mat2, out, cube_math_type)) {
  return plan_product("self", self, "mat2", mat2, out, 2);
}

ALOFT_ACLNN(Matmul, (const aclTensor* self, const aclTensor* mat2, const aclTensor* out, int8_t cube_math_type),
            (self, mat2, out, cube_math_type)) {
  return plan_product("self", self, "mat2", mat2, out, 0);
}

ALOFT_ACLNN(MatmulWeightNz, (const aclTensor* self, const aclTensor* mat2, const aclTensor* out, int8_t cube_math_type),
            (self, mat2, out, cube_math_type)) {
  require_panels("mat2", mat2);
  return plan_product("self", self, "mat2", mat2, out, 0);
}

ALOFT_ACLNN(BatchMatMul, (const aclTensor* self, const aclTensor* mat2, const aclTensor* out, int8_t cube_math_type),
            (self, mat2, out, cube_math_type)) {
  return plan_product("self", self, "mat2", mat2, out, 3);
}

ALOFT_ACLNN(BatchMatMulWeightNz,
            (const aclTensor* self, const aclTensor* mat2, const aclTensor* out, int8_t cube_math_type),
            (self, mat2, out, cube_math_type)) {
  require_panels("mat2", mat2);
  return plan_product("self", self, "mat2", mat2, out, 3);
}

ALOFT_ACLNN(Addmm,
            (const aclTensor* self, const aclTensor* mat1, const aclTensor* mat2, const aclScalar* beta,
             const aclScalar* alpha, const aclTensor* out, int8_t cube_math_type),
            (self, mat1, mat2, beta, alpha, out, cube_math_type)) {
  return plan_sum(self, "mat1", mat1, "mat2", mat2, beta, alpha, out, 2);
}

ALOFT_ACLNN(AddmmWeightNz,
            (const aclTensor* self, const aclTensor* mat1, const aclTensor* mat2, const aclScalar* beta,
             const aclScalar* alpha, const aclTensor* out, int8_t cube_math_type),
            (self, mat1, mat2, beta, alpha, out, cube_math_type)) {
  require_panels("mat2", mat2);
  return plan_sum(self, "mat1", mat1, "mat2", mat2, beta, alpha, out, 2);
}

ALOFT_ACLNN(InplaceAddmm,
            (const aclTensor* self, const aclTensor* mat1, const aclTensor* mat2, const aclScalar* beta,
             const aclScalar* alpha, int8_t cube_math_type),
            (self, mat1, mat2, beta, alpha, cube_math_type)) {
  return plan_sum(self, "mat1", mat1, "mat2", mat2, beta, alpha, self, 2);
}

ALOFT_ACLNN(Baddbmm,
            (const aclTensor* self, const aclTensor* batch1, const aclTensor* batch2, const aclScalar* beta,
             const aclScalar* alpha, const aclTensor* out, int8_t cube_math_type),
            (self, batch1, batch2, beta, alpha, out, cube_math_type)) {
  return plan_sum(self, "batch1", batch1, "batch2", batch2, beta, alpha, out, 3);
}

ALOFT_ACLNN(InplaceBaddbmm,
            (const aclTensor* self, const aclTensor* batch1, const aclTensor* batch2, const aclScalar* beta,
             const aclScalar* alpha, int8_t cube_math_type),
            (self, batch1, batch2, beta, alpha, cube_math_type)) {
  // aclnnBatchMatMul and aclnnBaddbmm broadcast a batch of one, this one does not (their documents).
  const Tensor A = in("batch1", batch1), B = in("batch2", batch2, Layout::Any);
  ALOFT_REQUIRE(A.ndim != 3 || B.ndim != 3 || A.size(0) == B.size(0),
                "batch1 %s and batch2 %s must have the same batch size: it is not broadcast in place",
                A.shape_text().c_str(), B.shape_text().c_str());
  return plan_sum(self, "batch1", batch1, "batch2", batch2, beta, alpha, self, 3);
}

ALOFT_ACLNN(Mv, (const aclTensor* self, const aclTensor* vec, const aclTensor* out, int8_t cube_math_type),
            (self, vec, out, cube_math_type)) {
  const Tensor A = in("self", self), X = in("vec", vec), Y = aloft::out("out", out);
  ALOFT_REQUIRE(A.ndim == 2 && X.ndim == 1, "self %s must be a matrix and vec %s a vector", A.shape_text().c_str(),
                X.shape_text().c_str());
  return plan_matmul("self", A, "vec", X, Y);
}

ALOFT_ACLNN(Addmv,
            (const aclTensor* self, const aclTensor* mat, const aclTensor* vec, const aclScalar* alpha,
             const aclScalar* beta, const aclTensor* out, int8_t cube_math_type),
            (self, mat, vec, alpha, beta, out, cube_math_type)) {
  const Tensor S = in("self", self), A = in("mat", mat), X = in("vec", vec), Y = aloft::out("out", out);
  ALOFT_REQUIRE(A.ndim == 2 && X.ndim == 1, "mat %s must be a matrix and vec %s a vector", A.shape_text().c_str(),
                X.shape_text().c_str());
  return plan_matmul("mat", A, "vec", X, Y, S, value_of("beta", beta), value_of("alpha", alpha));
}

ALOFT_ACLNN(Dot, (const aclTensor* self, const aclTensor* tensor, const aclTensor* out), (self, tensor, out)) {
  const Tensor X = in("self", self), Y = in("tensor", tensor), S = aloft::out("out", out);
  ALOFT_REQUIRE(X.ndim == 1 && Y.ndim == 1, "self %s and tensor %s must be vectors", X.shape_text().c_str(),
                Y.shape_text().c_str());
  return plan_matmul("self", X, "tensor", Y, S);
}

}  // namespace aloft
