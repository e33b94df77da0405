// A dimension of an operand, and the dense [outer, n, inner] array it makes of it.
#pragma once
#include "opapi/op.h"

namespace aloft {

struct Split {
  int dim = 0;
  int64_t outer = 1, n = 1, inner = 1;
};

// Wraps a negative dim; a tensor without dimensions counts as one of one element.
static inline Split split_at(const char* name, const Tensor& t, int64_t dim) {
  const int ndim = t.ndim ? t.ndim : 1;
  require(dim >= -ndim && dim < ndim, "dim is %lld, valid for %s are %d to %d", static_cast<long long>(dim), name,
          -ndim, ndim - 1);
  Split s;
  s.dim = static_cast<int>(dim < 0 ? dim + ndim : dim);
  if (!t.ndim) return s;
  for (int i = 0; i < s.dim; ++i) s.outer *= t.size(i);
  s.n = t.size(s.dim);
  for (int i = s.dim + 1; i < t.ndim; ++i) s.inner *= t.size(i);
  return s;
}

static inline void require_like(const char* name, const Tensor& t, const Tensor& x, const char* x_name) {
  ALOFT_REQUIRE(t.dtype == x.dtype && t.same_shape(x), "%s must be %s %s like %s, got %s %s", name, dtype_name(x.dtype),
                x.shape_text().c_str(), x_name, dtype_name(t.dtype), t.shape_text().c_str());
}

static inline bool is_index(DType dtype) { return dtype == DType::I64 || dtype == DType::I32; }
static inline bool is_float(DType t) { return t == DType::F32 || t == DType::F16 || t == DType::BF16; }

}  // namespace aloft
