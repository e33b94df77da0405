#include "opapi/quant.h"

#include <cstring>

#include "kernels/convert.h"
#include "kernels/half.h"

namespace aloft {
namespace {

float value_at(const Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case DType::F32:
      return t.ptr<float>()[offset];
    case DType::F16:
      return to_float(t.ptr<f16>()[offset]);
    case DType::BF16:
      return to_float(t.ptr<bf16>()[offset]);
    case DType::I8:
      return t.ptr<int8_t>()[offset];
    case DType::U8:
      return t.ptr<uint8_t>()[offset];
    case DType::I32:
      return static_cast<float>(t.ptr<int32_t>()[offset]);
    case DType::I64:
    case DType::U64:
      return packed_scale(t.ptr<int64_t>()[offset]);
    default:
      fail(kParamInvalid, "a scale or an offset is %s", dtype_name(t.dtype));
  }
}

}  // namespace

std::vector<float> float_values(const Tensor& t) {
  std::vector<float> values;
  if (!t) return values;
  const int64_t n = t.numel();
  if (is_float(t.dtype) && t.contiguous()) {
    values.resize(static_cast<size_t>(n));
    convert(t.data, t.dtype, values.data(), DType::F32, n);
    return values;
  }
  values.reserve(static_cast<size_t>(n));
  int64_t index[kMaxDims] = {}, offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(value_at(t, offset));
    for (int d = t.ndim - 1; d >= 0; --d) {
      offset += t.strides[d];
      if (++index[d] < t.sizes[d]) break;
      offset -= t.strides[d] * t.sizes[d];
      index[d] = 0;
    }
  }
  return values;
}

QuantOut quant_out(const char* name, const Tensor& y, const char* x_name, const Tensor& x, bool wide) {
  if (y.dtype == DType::I8 || (wide && (y.dtype == DType::U8 || (y.dtype == DType::I32 && y.same_shape(x))))) {
    ALOFT_REQUIRE(y.same_shape(x), "%s must have the shape of %s %s, got %s", name, x_name, x.shape_text().c_str(),
                  y.shape_text().c_str());
    return y.dtype == DType::I8 ? QuantOut::I8 : y.dtype == DType::U8 ? QuantOut::U8 : QuantOut::I32;
  }
  require(packed_int4(y), "%s must be int8%s or packed int4 (int32), got %s", name, wide ? ", uint8, int32" : "",
          dtype_name(y.dtype));
  ALOFT_REQUIRE(x.ndim > 0 && x.size(-1) % 8 == 0,
                "the last dimension of %s %s must be a multiple of 8 for packed int4", x_name, x.shape_text().c_str());
  Tensor expected = x;
  if (y.dtype == DType::I32) expected.sizes[x.ndim - 1] /= 8;
  ALOFT_REQUIRE(y.same_shape(expected), "%s must have the shape %s (eight int4 values in an int32), got %s", name,
                expected.shape_text().c_str(), y.shape_text().c_str());
  require(y.contiguous(), "%s is packed int4, it must be contiguous", name);
  return QuantOut::I4;
}

float packed_scale(int64_t packed) {
  const uint32_t bits = static_cast<uint32_t>(packed) & 0xffffe000u;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return scale;
}

int32_t packed_offset(int64_t packed) {
  const int32_t nine = static_cast<int32_t>((packed >> 37) & 0x1ff);
  return nine >= 256 ? nine - 512 : nine;
}

}  // namespace aloft
