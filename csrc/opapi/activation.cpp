// Activations and gated units of the aclnn door.
#include "kernels/activation.h"

#include <cstring>

#include "opapi/op.h"

namespace aloft {
namespace {

void check_float(const char* name, const Tensor& t) {
  require(t.dtype == DType::F32 || t.dtype == DType::F16 || t.dtype == DType::BF16,
          "%s must be float16, bfloat16 or float32, got %s", name, dtype_name(t.dtype));
}

void check_like(const char* name, const Tensor& t, const char* model_name, const Tensor& model) {
  ALOFT_REQUIRE(t.dtype == model.dtype && t.same_shape(model), "%s must be %s %s like %s, got %s %s", name,
                dtype_name(model.dtype), model.shape_text().c_str(), model_name, dtype_name(t.dtype),
                t.shape_text().c_str());
}

Work plan_unary(const aclTensor* x, const aclTensor* y, Activation kind, float alpha = 1.0f) {
  const Tensor X = in("self", x), Y = out("out", y);
  check_float("self", X);
  check_like("out", Y, "self", X);
  const int64_t n = X.numel();
  if (!n) return nullptr;
  if (X.contiguous() && Y.contiguous()) {
    const DType dtype = X.dtype;
    const void* from = X.data;
    void* to = Y.data;
    return [=] { activate(kind, alpha, dtype, from, to, n); };
  }
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write);
    activate(kind, alpha, X.dtype, from.data(), to.data(), n);
    to.commit();
  };
}

// x seen as [rows, 2, cols]: the two halves of dimension `dim`.
struct Halves {
  int64_t rows = 1, cols = 1;
};

Halves split(const char* name, const Tensor& x, int64_t* dim) {
  require(x.ndim >= 1, "%s has no dimensions", name);
  require(*dim >= -x.ndim && *dim < x.ndim, "dim is %lld, %s has %d dimensions", static_cast<long long>(*dim), name,
          x.ndim);
  if (*dim < 0) *dim += x.ndim;
  require(x.size(static_cast<int>(*dim)) % 2 == 0, "dimension %lld of %s has %lld elements, it must be even",
          static_cast<long long>(*dim), name, static_cast<long long>(x.size(static_cast<int>(*dim))));
  Halves h;
  for (int i = 0; i < x.ndim; ++i) (i < *dim ? h.rows : h.cols) *= x.size(i);
  h.cols /= 2;
  return h;
}

void check_half(const char* name, const Tensor& y, const Tensor& x, int64_t dim) {
  Tensor expected = x;
  expected.sizes[dim] /= 2;
  check_like(name, y, "half of the input", expected);
}

size_t item_of(const Tensor& t) { return dtype_size(t.dtype); }

char* at(void* base, int64_t elements, const Tensor& t) {
  return static_cast<char*>(base) + elements * static_cast<int64_t>(item_of(t));
}

}  // namespace

ALOFT_ACLNN(Silu, (const aclTensor* self, const aclTensor* result), (self, result)) {
  return plan_unary(self, result, Activation::Silu);
}

// aclnnGelu is left out: torch_npu's aten::gelu calls it without the `approximate` it was given.

// approximate: 0 "none", 1 "tanh".
ALOFT_ACLNN(GeluV2, (const aclTensor* self, int64_t approximate, const aclTensor* result),
            (self, approximate, result)) {
  require(approximate == 0 || approximate == 1, "approximate is %lld, it must be 0 (none) or 1 (tanh)",
          static_cast<long long>(approximate));
  return plan_unary(self, result, approximate ? Activation::GeluTanh : Activation::Gelu);
}

ALOFT_ACLNN(FastGelu, (const aclTensor* self, const aclTensor* result), (self, result)) {
  return plan_unary(self, result, Activation::Silu, 1.702f);
}

ALOFT_ACLNN(SwiGlu, (const aclTensor* x, int64_t dim, const aclTensor* y), (x, dim, y)) {
  const Tensor X = in("x", x), Y = out("y", y);
  check_float("x", X);
  const Halves h = split("x", X, &dim);
  check_half("y", Y, X, dim);
  if (!Y.numel()) return nullptr;
  GatedArgs a;
  a.dtype = X.dtype, a.rows = h.rows, a.cols = h.cols, a.stride = 2 * h.cols;
  a.act = X.data, a.gate = at(X.data, h.cols, X), a.y = Y.data;
  if (X.contiguous() && Y.contiguous()) return [a] { gated(a); };
  return [=]() mutable {
    Dense from(X, Dense::Read), to(Y, Dense::Write);
    a.act = from.data(), a.gate = at(from.data(), h.cols, X), a.y = to.data();
    gated(a);
    to.commit();
  };
}

ALOFT_ACLNN(SwiGluGrad, (const aclTensor* dy, const aclTensor* x, int64_t dim, const aclTensor* dx), (dy, x, dim, dx)) {
  const Tensor DY = in("yGrad", dy), X = in("x", x), DX = out("xGrad", dx);
  check_float("x", X);
  const Halves h = split("x", X, &dim);
  check_half("yGrad", DY, X, dim);
  check_like("xGrad", DX, "x", X);
  if (!X.numel()) return nullptr;
  return [=] {
    Dense grad(DY, Dense::Read), from(X, Dense::Read), to(DX, Dense::Write);
    SwigluGradArgs a;
    a.dtype = X.dtype, a.rows = h.rows, a.cols = h.cols, a.stride = 2 * h.cols;
    a.dy = grad.data(), a.act = from.data(), a.gate = at(from.data(), h.cols, X);
    a.dact = to.data(), a.dgate = at(to.data(), h.cols, X);
    swiglu_grad(a);
    to.commit();
  };
}

// approximate: 0 "none", 1 "tanh". The right half is activated unless activate_left.
ALOFT_ACLNN(GeGluV3,
            (const aclTensor* x, int64_t dim, int64_t approximate, bool activate_left, const aclTensor* y,
             const aclTensor* gelu),
            (x, dim, approximate, activate_left, y, gelu)) {
  const Tensor X = in("self", x), Y = out("out", y), A = out("outGelu", gelu);
  check_float("self", X);
  require(approximate == 0 || approximate == 1, "approximate is %lld, it must be 0 (none) or 1 (tanh)",
          static_cast<long long>(approximate));
  const Halves h = split("self", X, &dim);
  check_half("out", Y, X, dim);
  check_half("outGelu", A, X, dim);
  if (!Y.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write), part(A, Dense::Write);
    GatedArgs a;
    a.kind = approximate ? Activation::GeluTanh : Activation::Gelu;
    a.dtype = X.dtype, a.rows = h.rows, a.cols = h.cols, a.stride = 2 * h.cols;
    a.act = activate_left ? from.data() : at(from.data(), h.cols, X);
    a.gate = activate_left ? at(from.data(), h.cols, X) : from.data();
    a.y = to.data(), a.activated = part.data();
    gated(a);
    to.commit();
    part.commit();
  };
}

ALOFT_ACLNN(GeluMul, (const aclTensor* x, const char* approximate, const aclTensor* y), (x, approximate, y)) {
  const Tensor X = in("input", x), Y = out("out", y);
  check_float("input", X);
  require(approximate && (!std::strcmp(approximate, "none") || !std::strcmp(approximate, "tanh")),
          "approximate is \"%s\", it must be \"none\" or \"tanh\"", approximate ? approximate : "");
  const bool tanh = approximate[0] == 't';
  int64_t dim = -1;
  const Halves h = split("input", X, &dim);
  check_half("out", Y, X, dim);
  if (!Y.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write);
    GatedArgs a;
    a.kind = tanh ? Activation::GeluTanh : Activation::Gelu;
    a.dtype = X.dtype, a.rows = h.rows, a.cols = h.cols, a.stride = 2 * h.cols;
    a.act = from.data(), a.gate = at(from.data(), h.cols, X), a.y = to.data();
    gated(a);
    to.commit();
  };
}

// The dimensions from `dim` on are merged and split in two, interleaved or as halves. With group_index (counts)
// only the rows of the groups are computed.
ALOFT_ACLNN(ClippedSwiglu,
            (const aclTensor* x, const aclTensor* group_index, int64_t dim, double alpha, double limit_value,
             double bias, bool interleaved, const aclTensor* y),
            (x, group_index, dim, alpha, limit_value, bias, interleaved, y)) {
  const Tensor X = in("x", x), Groups = optional("group_index", group_index), Y = out("y", y);
  check_float("x", X);
  const Halves h = split("x", X, &dim);
  check_half("y", Y, X, dim);
  require(limit_value > 0, "limit is %g, it must be positive", limit_value);
  if (Groups) {
    require(Groups.dtype == DType::I64, "group_index must be int64, got %s", dtype_name(Groups.dtype));
    ALOFT_REQUIRE(Groups.ndim == 1, "group_index must have one dimension, its shape is %s",
                  Groups.shape_text().c_str());
  }
  if (!Y.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write), counts(Groups, Dense::Read);
    GatedArgs a;
    a.dtype = X.dtype, a.rows = h.rows, a.cols = h.cols, a.stride = 2 * h.cols;
    a.step = interleaved ? 2 : 1;
    a.clipped = true;
    a.alpha = static_cast<float>(alpha), a.limit = static_cast<float>(limit_value), a.bias = static_cast<float>(bias);
    a.act = from.data(), a.gate = at(from.data(), interleaved ? 1 : h.cols, X), a.y = to.data();
    if (Groups) {
      int64_t rows = 0;
      for (int64_t i = 0; i < Groups.numel(); ++i) {
        const int64_t count = static_cast<const int64_t*>(counts.data())[i];
        require(count >= 0, "group_index[%lld] is %lld, counts cannot be negative", static_cast<long long>(i),
                static_cast<long long>(count));
        rows += count;
      }
      require(rows <= h.rows, "the counts of group_index add up to %lld, x has %lld rows", static_cast<long long>(rows),
              static_cast<long long>(h.rows));
      a.rows = rows;
      if (rows < h.rows) poison(to.tensor());  // the rows past the groups stay undefined
    }
    gated(a);
    to.commit();
  };
}

}  // namespace aloft
