// Choosing and ordering along one dimension, and cumulative sums.
#include "kernels/ordering.h"

#include "kernels/scan.h"
#include "opapi/dims.h"

namespace aloft {
namespace {

void check_ordered(const Tensor& x, const Split& s) {
  require(ordering_supports(x.dtype), "self has the dtype %s; supported: float32, float16, bfloat16, integers, bool",
          dtype_name(x.dtype));
  require(s.n < (int64_t{1} << 31), "self has %lld elements along dim, at most 2^31 - 1 can be ordered",
          static_cast<long long>(s.n));
}

// Result of a reduction of x along s.dim: the same number of elements whether or not the dimension is kept.
void check_reduced(const char* name, const Tensor& t, DType dtype, const Split& s) {
  require(t.dtype == dtype, "%s must be %s, got %s", name, dtype_name(dtype), dtype_name(t.dtype));
  ALOFT_REQUIRE(t.numel() == s.outer * s.inner, "%s has the shape %s, %lld elements are expected", name,
                t.shape_text().c_str(), static_cast<long long>(s.outer * s.inner));
}

OrderingArgs ordering_args(const Split& s, DType dtype) {
  OrderingArgs a;
  a.outer = s.outer, a.n = s.n, a.inner = s.inner, a.dtype = dtype;
  return a;
}

Work plan_extreme(const aclTensor* self, int64_t dim, const aclTensor* values, const aclTensor* indices,
                  bool greatest) {
  const Tensor X = in("self", self), I = out("indices", indices);
  const Tensor V = values ? out("out", values) : Tensor();
  const Split s = split_at("self", X, dim);
  check_ordered(X, s);
  require(is_index(I.dtype), "indices must be int64 or int32, got %s", dtype_name(I.dtype));
  check_reduced("indices", I, I.dtype, s);
  if (V) check_reduced("out", V, X.dtype, s);
  if (s.outer * s.inner == 0) return nullptr;
  require(s.n > 0, "self has no elements along dim %d, there is nothing to choose", s.dim);
  return [=] {
    Dense x(X, Dense::Read), i(I, Dense::Write);
    OrderingArgs a = ordering_args(s, X.dtype);
    a.x = x.data();
    std::vector<int64_t> wide;
    if (I.dtype == DType::I64) {
      a.indices = static_cast<int64_t*>(i.data());
    } else {
      wide.resize(static_cast<size_t>(I.numel()));
      a.indices = wide.data();
    }
    if (V) {
      Dense v(V, Dense::Write);
      a.values = v.data();
      arg_extreme(a, greatest);
      v.commit();
    } else {
      arg_extreme(a, greatest);
    }
    for (size_t j = 0; j < wide.size(); ++j) static_cast<int32_t*>(i.data())[j] = static_cast<int32_t>(wide[j]);
    i.commit();
  };
}

Work plan_top_k(const aclTensor* self, int64_t k, int64_t dim, bool largest, const aclTensor* values,
                const aclTensor* indices) {
  const Tensor X = in("self", self), V = out("values", values), I = out("indices", indices);
  const Split s = split_at("self", X, dim);
  check_ordered(X, s);
  require(k >= 0 && k <= s.n, "k is %lld, self has %lld elements along dim %d", static_cast<long long>(k),
          static_cast<long long>(s.n), s.dim);
  require(V.dtype == X.dtype, "values must be %s like self, got %s", dtype_name(X.dtype), dtype_name(V.dtype));
  require(I.dtype == DType::I64, "indices must be int64, got %s", dtype_name(I.dtype));
  const int64_t count = s.outer * k * s.inner;
  ALOFT_REQUIRE(V.numel() == count && I.same_shape(V), "values %s and indices %s must hold %lld elements",
                V.shape_text().c_str(), I.shape_text().c_str(), static_cast<long long>(count));
  if (!count) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), v(V, Dense::Write), i(I, Dense::Write);
    OrderingArgs a = ordering_args(s, X.dtype);
    a.x = x.data(), a.values = v.data(), a.indices = static_cast<int64_t*>(i.data());
    top_k(a, k, largest);
    v.commit();
    i.commit();
  };
}

Work plan_cumsum(const aclTensor* self, int64_t dim, const aclTensor* result) {
  const Tensor X = in("self", self), Y = out("out", result);
  const Split s = split_at("self", X, dim);
  require(cumsum_supports(X.dtype, Y.dtype), "a cumulative sum of %s into %s is not supported", dtype_name(X.dtype),
          dtype_name(Y.dtype));
  ALOFT_REQUIRE(Y.same_shape(X), "out must have the shape of self %s, got %s", X.shape_text().c_str(),
                Y.shape_text().c_str());
  if (!X.numel()) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), y(Y, Dense::Write);
    CumsumArgs a;
    a.outer = s.outer, a.n = s.n, a.inner = s.inner;
    a.x_dtype = X.dtype, a.y_dtype = Y.dtype;
    a.x = x.data(), a.y = y.data();
    cumsum(a);
    y.commit();
  };
}

}  // namespace

ALOFT_ACLNN(ArgMax, (const aclTensor* self, int64_t dim, bool keepdim, aclTensor* out), (self, dim, keepdim, out)) {
  return plan_extreme(self, dim, nullptr, out, true);
}

ALOFT_ACLNN(ArgMin, (const aclTensor* self, int64_t dim, bool keepdim, aclTensor* out), (self, dim, keepdim, out)) {
  return plan_extreme(self, dim, nullptr, out, false);
}

ALOFT_ACLNN(MaxDim, (const aclTensor* self, int64_t dim, bool keepdim, aclTensor* out, aclTensor* indices),
            (self, dim, keepdim, out, indices)) {
  return plan_extreme(self, dim, out, indices, true);
}

ALOFT_ACLNN(MinDim, (const aclTensor* self, int64_t dim, bool keepdim, aclTensor* out, aclTensor* indices),
            (self, dim, keepdim, out, indices)) {
  return plan_extreme(self, dim, out, indices, false);
}

// Results come sorted whether or not that is asked for.
ALOFT_ACLNN(Topk,
            (const aclTensor* self, int64_t k, int64_t dim, bool largest, bool sorted, aclTensor* values,
             aclTensor* indices),
            (self, k, dim, largest, sorted, values, indices)) {
  return plan_top_k(self, k, dim, largest, values, indices);
}

// Always stable: a stable order is a valid unstable one.
ALOFT_ACLNN(Sort,
            (const aclTensor* self, bool stable, int64_t dim, bool descending, aclTensor* values, aclTensor* indices),
            (self, stable, dim, descending, values, indices)) {
  const Tensor X = in("self", self), V = out("values", values), I = out("indices", indices);
  const Split s = split_at("self", X, dim);
  check_ordered(X, s);
  require_like("values", V, X, "self");
  ALOFT_REQUIRE(I.dtype == DType::I64 && I.same_shape(X), "indices must be int64 %s, got %s %s", X.shape_text().c_str(),
                dtype_name(I.dtype), I.shape_text().c_str());
  if (!X.numel()) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), v(V, Dense::Write), i(I, Dense::Write);
    OrderingArgs a = ordering_args(s, X.dtype);
    std::vector<unsigned char> copy;
    a.x = x.data();
    if (a.x == v.data()) {  // out= may name the operand itself
      const auto* bytes = static_cast<const unsigned char*>(a.x);
      copy.assign(bytes, bytes + static_cast<size_t>(X.numel()) * dtype_size(X.dtype));
      a.x = copy.data();
    }
    a.values = v.data(), a.indices = static_cast<int64_t*>(i.data());
    sort_lines(a, descending);
    v.commit();
    i.commit();
  };
}

ALOFT_ACLNN(Cumsum, (const aclTensor* self, int64_t dim, int32_t dtype, aclTensor* out), (self, dim, dtype, out)) {
  return plan_cumsum(self, dim, out);
}

}  // namespace aloft
