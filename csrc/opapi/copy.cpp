// Copies, casts and fills of the aclnn door, and table look-ups.
#include <algorithm>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/parallel.h"
#include "kernels/strided.h"
#include "opapi/op.h"

namespace aloft {
namespace {

void check_convertible(const char* name, const Tensor& t) {
  require(convertible(t.dtype), "%s cannot be %s", name, dtype_name(t.dtype));
}

bool overlap(const Tensor& a, const Tensor& b) {
  auto range = [](const Tensor& t, const char** low, const char** high) {
    int64_t first = 0, last = 0;
    for (int i = 0; i < t.ndim; ++i) (t.stride(i) < 0 ? first : last) += (t.size(i) - 1) * t.stride(i);
    const int64_t item = static_cast<int64_t>(dtype_size(t.dtype));
    *low = t.ptr<char>() + first * item;
    *high = t.ptr<char>() + (last + 1) * item;
  };
  const char *a_low, *a_high, *b_low, *b_high;
  range(a, &a_low, &a_high);
  range(b, &b_low, &b_high);
  return a_low < b_high && b_low < a_high;
}

// `from` (broadcast) into `to`, converting the dtype.
Work plan_copy(const Tensor& from, const Tensor& to, const char* from_name, const char* to_name) {
  const bool same = from.dtype == to.dtype && dtype_size(to.dtype);
  if (!same) {
    check_convertible(from_name, from);
    check_convertible(to_name, to);
  }
  Tensor source = from;
  ALOFT_REQUIRE(from.ndim <= to.ndim, "%s has the shape %s, which does not broadcast to %s %s", from_name,
                from.shape_text().c_str(), to_name, to.shape_text().c_str());
  source.ndim = to.ndim;
  for (int i = 0; i < to.ndim; ++i) {
    const int f = i - (to.ndim - from.ndim);
    const int64_t size = f < 0 ? 1 : from.size(f);
    ALOFT_REQUIRE(size == to.size(i) || size == 1, "%s has the shape %s, which does not broadcast to %s %s", from_name,
                  from.shape_text().c_str(), to_name, to.shape_text().c_str());
    source.sizes[i] = to.size(i);
    source.strides[i] = size == to.size(i) && f >= 0 ? from.stride(f) : 0;
  }
  if (!to.numel()) return nullptr;
  if (same && source.contiguous() && to.contiguous()) {
    const void* f = source.data;
    void* t = to.data;
    const size_t bytes = static_cast<size_t>(to.numel()) * dtype_size(to.dtype);
    if (f == t) return nullptr;
    return [=] {
      if (bytes < (1 << 19)) {
        std::memmove(t, f, bytes);
        return;
      }
      const int64_t one = 1, n = static_cast<int64_t>(bytes);
      strided_copy(f, &one, t, &one, &n, 1, 1);
    };
  }
  return [=] {
    std::vector<unsigned char> holder;
    Tensor f = source;
    if (overlap(source, to)) {  // e.g. x.copy_(x.t()): all is read before anything is written
      int64_t stride = static_cast<int64_t>(dtype_size(source.dtype));
      holder.resize(static_cast<size_t>(source.numel() * stride));
      stride = 1;
      for (int i = source.ndim - 1; i >= 0; --i) {
        f.strides[i] = stride;
        stride *= source.size(i);
      }
      f.data = holder.data();
      copy_strided(source, f);
    }
    if (same) {
      copy_strided(f, to);
    } else {
      convert_strided(f.data, f.dtype, f.strides, to.data, to.dtype, to.strides, to.sizes, to.ndim);
    }
  };
}

Work plan_fill(const Tensor& to, const void* value, DType value_dtype) {
  check_convertible("selfRef", to);
  unsigned char bytes[16] = {};
  struct Value {
    unsigned char bytes[16];
  } item{};
  std::memcpy(bytes, value, dtype_size(value_dtype));
  convert(bytes, value_dtype, item.bytes, to.dtype, 1);
  if (!to.numel()) return nullptr;
  const size_t width = dtype_size(to.dtype), bytes_in_all = static_cast<size_t>(to.numel()) * width;
  constexpr size_t kLarge = 1u << 20;  // from here on it pays to leave fresh pages alone
  if (to.contiguous() && bytes_in_all >= kLarge && !std::memcmp(item.bytes, Value{}.bytes, width)) {
    return [=] { aloftFillZero(to.data, bytes_in_all); };
  }
  return [=] { strided_fill(to.data, to.strides, to.sizes, to.ndim, item.bytes, dtype_size(to.dtype)); };
}

}  // namespace

ALOFT_ACLNN(InplaceCopy, (const aclTensor* self, const aclTensor* source), (self, source)) {
  return plan_copy(in("src", source), out("selfRef", self), "src", "selfRef");
}

ALOFT_ACLNN(Cast, (const aclTensor* self, int dtype, const aclTensor* result), (self, dtype, result)) {
  const Tensor From = in("self", self), To = out("out", result);
  require(static_cast<DType>(dtype) == To.dtype, "out must have the dtype asked for (%s), got %s",
          dtype_name(static_cast<DType>(dtype)), dtype_name(To.dtype));
  ALOFT_REQUIRE(From.same_shape(To), "out must have the shape of self %s, got %s", From.shape_text().c_str(),
                To.shape_text().c_str());
  return plan_copy(From, To, "self", "out");
}

ALOFT_ACLNN(InplaceZero, (const aclTensor* self), (self)) {
  const float zero = 0;
  return plan_fill(out("selfRef", self), &zero, DType::F32);
}

ALOFT_ACLNN(InplaceOne, (const aclTensor* self), (self)) {
  const float one = 1;
  return plan_fill(out("selfRef", self), &one, DType::F32);
}

ALOFT_ACLNN(InplaceFillScalar, (const aclTensor* self, const aclScalar* value), (self, value)) {
  if (!value) fail(kParamNull, "value is missing");
  return plan_fill(out("selfRef", self), value->bytes, value->dtype);
}

ALOFT_ACLNN(InplaceFillTensor, (const aclTensor* self, const aclTensor* value), (self, value)) {
  const Tensor Value = in("value", value);
  ALOFT_REQUIRE(Value.numel() == 1, "value must hold one element, its shape is %s", Value.shape_text().c_str());
  return plan_copy(Value, out("selfRef", self), "value", "selfRef");
}

ALOFT_ACLNN(Embedding, (const aclTensor* weight, const aclTensor* indices, const aclTensor* result),
            (weight, indices, result)) {
  const Tensor W = in("weight", weight), I = in("indices", indices), Out = out("out", result);
  ALOFT_REQUIRE(W.ndim == 2, "weight must be [rows, width], its shape is %s", W.shape_text().c_str());
  require(dtype_size(W.dtype) && Out.dtype == W.dtype, "out must have the dtype of weight (%s), got %s",
          dtype_name(W.dtype), dtype_name(Out.dtype));
  require(I.dtype == DType::I32 || I.dtype == DType::I64, "indices must be int32 or int64, got %s",
          dtype_name(I.dtype));
  bool fits = Out.ndim == I.ndim + 1 && Out.size(-1) == W.size(1);
  for (int i = 0; fits && i < I.ndim; ++i) fits = Out.size(i) == I.size(i);
  ALOFT_REQUIRE(fits, "out must have the shape of indices %s followed by %lld, got %s", I.shape_text().c_str(),
                static_cast<long long>(W.size(1)), Out.shape_text().c_str());
  if (!Out.numel()) return nullptr;
  return [=] {
    Dense index(I, Dense::Read), to(Out, Dense::Write);
    std::vector<int64_t> rows(static_cast<size_t>(I.numel()));
    convert(index.data(), I.dtype, rows.data(), DType::I64, I.numel());
    const int64_t count = W.size(0), width = W.size(1), item = static_cast<int64_t>(dtype_size(W.dtype));
    for (size_t i = 0; i < rows.size(); ++i) {
      require(rows[i] >= 0 && rows[i] < count, "indices holds %lld, weight has %lld rows",
              static_cast<long long>(rows[i]), static_cast<long long>(count));
    }
    const int64_t bytes = width * item, one = 1;
    parallel_for(I.numel(), std::max<int64_t>(1, (1 << 16) / bytes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const char* from = W.ptr<char>() + rows[static_cast<size_t>(i)] * W.stride(0) * item;
        char* line = static_cast<char*>(to.data()) + i * bytes;
        if (W.stride(1) == 1 || width == 1) {
          std::memcpy(line, from, static_cast<size_t>(bytes));
        } else {
          strided_copy(from, &W.strides[1], line, &one, &width, 1, static_cast<size_t>(item));
        }
      }
    });
    to.commit();
  };
}

}  // namespace aloft
