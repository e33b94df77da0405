// What the quantisation operators share.
#pragma once
#include <string>
#include <vector>

#include "kernels/quantize.h"
#include "opapi/dims.h"

namespace aloft {

// Values of a small operand (scales, offsets, biases) as fp32, row-major whatever its strides. Call it inside the work.
std::vector<float> float_values(const Tensor& t);

// The output form `y` has for quantising `x`: int8 (uint8, int32 where `wide`) of x's shape, or packed int4: int32 with
// an eighth of the last dimension, or the 4-bit type with x's shape. Refuses the rest.
QuantOut quant_out(const char* name, const Tensor& y, const char* x_name, const Tensor& x, bool wide = false);

// A dense view of a packed int4 output as bytes of its rows.
inline bool packed_int4(const Tensor& t) { return t.dtype == DType::I32 || t.dtype == DType::I4; }

// The hardware's packed dequantisation parameter: bits 0 to 31 the fp32 scale with 13 mantissa bits cleared, bits 37
// to 45 an integer offset, bit 46 set.
float packed_scale(int64_t packed);
int32_t packed_offset(int64_t packed);

inline long long ll(int64_t v) { return static_cast<long long>(v); }

}  // namespace aloft
