// Reading and writing at places given by an index tensor.
#include "kernels/indexing.h"

#include <cstring>
#include <memory>

#include "kernels/half.h"
#include "opapi/dims.h"

namespace aloft {
namespace {

enum Reduction : int64_t { kReplace = 0, kAdd = 1, kMultiply = 2 };

void check_index(const Tensor& index) {
  require(is_index(index.dtype), "index must be int64 or int32, got %s", dtype_name(index.dtype));
}

// Runs as part of the work: the values of the index are known only then.
void check_range(const Tensor& index, const void* data, int64_t size) {
  const int64_t at = find_out_of_range(data, index.dtype, index.numel(), size);
  if (at < 0) return;
  const int64_t value =
      index.dtype == DType::I32 ? static_cast<const int32_t*>(data)[at] : static_cast<const int64_t*>(data)[at];
  fail(kParamInvalid, "index %lld is out of bounds for a dimension of size %lld", static_cast<long long>(value),
       static_cast<long long>(size));
}

void check_extent(const Tensor& index, const Tensor& t, int skipped, const char* name) {
  require(t.ndim == index.ndim || (t.ndim <= 1 && index.ndim <= 1), "index has %d dimensions, %s has %d", index.ndim,
          name, t.ndim);
  if (t.ndim != index.ndim) return;  // one of the two is a scalar
  for (int i = 0; i < index.ndim; ++i) {
    ALOFT_REQUIRE(i == skipped || index.size(i) <= t.size(i), "index %s is larger than %s %s in dimension %d",
                  index.shape_text().c_str(), name, t.shape_text().c_str(), i);
  }
}

// A scalar stands for a vector of one element.
Tensor at_least_1d(Tensor t) {
  if (t.ndim) return t;
  t.ndim = 1;
  t.sizes[0] = 1;
  t.strides[0] = 1;
  return t;
}

struct Place {
  Tensor base, index, other;
  int dim = 0;
};

PlaceArgs place_args(const Place& p, const Tensor& dense_index) {
  PlaceArgs a;
  a.ndim = p.index.ndim, a.dim = p.dim, a.sizes = p.index.sizes;
  a.index = dense_index.data, a.index_dtype = p.index.dtype, a.index_strides = dense_index.strides;
  a.base = p.base.data, a.base_strides = p.base.strides;
  a.other = p.other.data, a.other_strides = p.other.strides;
  return a;
}

Work plan_scatter(const aclTensor* self, int64_t dim, const aclTensor* index, const Tensor& source, Reduction reduction,
                  const aclTensor* result) {
  Place p;
  const Tensor self_view = in("self", self), out_view = out("out", result);
  require_like("out", out_view, self_view, "self");
  p.dim = split_at("self", self_view, dim).dim;
  p.index = at_least_1d(in("index", index));
  check_index(p.index);
  p.base = at_least_1d(out_view);
  p.other = at_least_1d(source);
  require(p.other.dtype == p.base.dtype, "src must have the dtype of self (%s), got %s", dtype_name(p.base.dtype),
          dtype_name(p.other.dtype));
  const size_t item = dtype_size(p.base.dtype);
  require(item == 1 || item == 2 || item == 4 || item == 8, "self has the dtype %s, which is not supported",
          dtype_name(p.base.dtype));
  require(reduction == kReplace || reduction == kAdd, "reduce is %lld, supported are 0 (replace) and 1 (add)",
          static_cast<long long>(reduction));
  require(reduction == kReplace || scatter_add_supports(p.base.dtype),
          "self has the dtype %s, which cannot be added to", dtype_name(p.base.dtype));
  if (p.index.numel()) {
    check_extent(p.index, p.base, p.dim, "self");
    check_extent(p.index, p.other, -1, "src");
  }
  return [=] {
    Dense indices(p.index, Dense::Read);
    if (p.index.numel()) check_range(p.index, indices.data(), p.base.size(p.dim));
    if (self_view.data != out_view.data) copy_strided(self_view, out_view);
    if (!p.index.numel()) return;
    const PlaceArgs a = place_args(p, indices.tensor());
    reduction == kAdd ? scatter_add(a, p.base.dtype) : scatter(a, item);
  };
}

template <class T>
void put(unsigned char* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

// The scalar as an element of the given type.
void scalar_to(const aclScalar& value, DType dtype, unsigned char* bytes) {
  switch (dtype) {
    case DType::F32:
      return put(bytes, static_cast<float>(value.as_double()));
    case DType::F16:
      return put(bytes, from_float<f16>(static_cast<float>(value.as_double())));
    case DType::BF16:
      return put(bytes, from_float<bf16>(static_cast<float>(value.as_double())));
    case DType::F64:
      return put(bytes, value.as_double());
    case DType::Bool:
      return put(bytes, static_cast<uint8_t>(value.as_double() != 0));
    case DType::I64:
    case DType::U64:
      return put(bytes, value.as_int());
    case DType::I32:
    case DType::U32:
      return put(bytes, static_cast<int32_t>(value.as_int()));
    case DType::I16:
    case DType::U16:
      return put(bytes, static_cast<int16_t>(value.as_int()));
    case DType::I8:
    case DType::U8:
      return put(bytes, static_cast<int8_t>(value.as_int()));
    default:
      fail(kParamInvalid, "self has the dtype %s, which is not supported", dtype_name(dtype));
  }
}

// Every element of the source is the same value.
Work plan_scatter_value(const aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value,
                        int64_t reduction, const aclTensor* result) {
  if (!value) fail(kParamNull, "value is missing");
  const Tensor X = in("self", self), I = in("index", index);
  struct Element {
    alignas(8) unsigned char bytes[8];
  };
  auto element = std::make_shared<Element>();
  scalar_to(*value, X.dtype, element->bytes);
  Tensor source = at_least_1d(I);
  source.dtype = X.dtype;
  source.data = element->bytes;
  for (int i = 0; i < source.ndim; ++i) source.strides[i] = 0;
  const Work work = plan_scatter(self, dim, index, source, static_cast<Reduction>(reduction), result);
  return [work, element] { work(); };
}

}  // namespace

ALOFT_ACLNN(IndexSelect, (const aclTensor* self, int64_t dim, const aclTensor* index, aclTensor* out),
            (self, dim, index, out)) {
  const Tensor X = in("self", self), I = in("index", index), Y = aloft::out("out", out);
  const Split s = split_at("self", X, dim);
  check_index(I);
  require(I.ndim <= 1, "index has %d dimensions, it may have 1", I.ndim);
  require(Y.dtype == X.dtype, "out must be %s like self, got %s", dtype_name(X.dtype), dtype_name(Y.dtype));
  const int64_t count = I.numel();
  bool fits = Y.ndim == X.ndim;
  for (int i = 0; fits && i < X.ndim; ++i) fits = Y.size(i) == (i == s.dim ? count : X.size(i));
  ALOFT_REQUIRE(fits && (X.ndim || count == 1), "out has the shape %s, self %s with %lld indices along dim %d differs",
                Y.shape_text().c_str(), X.shape_text().c_str(), static_cast<long long>(count), s.dim);
  if (!count) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), index(I, Dense::Read), y(Y, Dense::Write);
    check_range(I, index.data(), s.n);
    SelectArgs a;
    a.outer = s.outer, a.n = s.n, a.inner = s.inner, a.count = count, a.item = dtype_size(X.dtype);
    a.x = x.data(), a.index = index.data(), a.index_dtype = I.dtype, a.y = y.data();
    if (Y.numel()) index_select(a);
    y.commit();
  };
}

ALOFT_ACLNN(Gather, (const aclTensor* self, int64_t dim, const aclTensor* index, aclTensor* out),
            (self, dim, index, out)) {
  Place p;
  p.dim = split_at("self", in("self", self), dim).dim;
  p.base = at_least_1d(in("self", self));
  p.index = at_least_1d(in("index", index));
  p.other = at_least_1d(aloft::out("out", out));
  check_index(p.index);
  const size_t item = dtype_size(p.base.dtype);
  require(item == 1 || item == 2 || item == 4 || item == 8, "self has the dtype %s, which is not supported",
          dtype_name(p.base.dtype));
  ALOFT_REQUIRE(p.other.dtype == p.base.dtype && p.other.same_shape(p.index),
                "out must be %s with the shape of index %s, got %s %s", dtype_name(p.base.dtype),
                p.index.shape_text().c_str(), dtype_name(p.other.dtype), p.other.shape_text().c_str());
  if (!p.index.numel()) return nullptr;
  check_extent(p.index, p.base, p.dim, "self");
  return [=] {
    Dense index(p.index, Dense::Read);
    check_range(p.index, index.data(), p.base.size(p.dim));
    gather(place_args(p, index.tensor()), item);
  };
}

ALOFT_ACLNN(Scatter,
            (const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* src, int64_t reduce,
             aclTensor* out),
            (self, dim, index, src, reduce, out)) {
  return plan_scatter(self, dim, index, in("src", src), static_cast<Reduction>(reduce), out);
}

ALOFT_ACLNN(InplaceScatter,
            (aclTensor * self, int64_t dim, const aclTensor* index, const aclTensor* src, int64_t reduce),
            (self, dim, index, src, reduce)) {
  return plan_scatter(self, dim, index, in("src", src), static_cast<Reduction>(reduce), self);
}

ALOFT_ACLNN(ScatterValue,
            (const aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value, int64_t reduce,
             aclTensor* out),
            (self, dim, index, value, reduce, out)) {
  return plan_scatter_value(self, dim, index, value, reduce, out);
}

ALOFT_ACLNN(InplaceScatterValue,
            (aclTensor * self, int64_t dim, const aclTensor* index, const aclScalar* value, int64_t reduce),
            (self, dim, index, value, reduce)) {
  return plan_scatter_value(self, dim, index, value, reduce, self);
}

ALOFT_ACLNN(ScatterAdd,
            (const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* src, aclTensor* out),
            (self, dim, index, src, out)) {
  return plan_scatter(self, dim, index, in("src", src), kAdd, out);
}

}  // namespace aloft
