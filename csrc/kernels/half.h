// bfloat16, IEEE half and 8-bit floats as storage types: conversions to and from fp32, round to nearest even.
// Everything is static: nothing here may be merged across instruction-set variants by the linker.
#pragma once
#include <cstdint>
#include <cstring>

namespace aloft {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// An e4m3 number (4 exponent bits with bias 7, 3 mantissa bits). Read as what its bits mean in a half: 2^-8 of its
// value, a factor its readers take into the scale they multiply with anyway. 0x7f and 0xff, NaN, do not occur in what
// we write.
struct f8 {
  uint8_t bits;
};

static inline float to_float(float v) { return v; }
static inline float to_float(bf16 v) {
  const uint32_t u = static_cast<uint32_t>(v.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
static inline float to_float(f16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16;
  const uint32_t exponent = (v.bits >> 10) & 31, mantissa = v.bits & 0x3ff;
  uint32_t u;
  if (exponent == 31) {
    u = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent) {
    u = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    const float f = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

static inline float to_float(f8 v) {
  return to_float(f16{static_cast<uint16_t>((v.bits & 0x80) << 8 | (v.bits & 0x7f) << 7)});
}

template <class T>
static inline T from_float(float v);
template <>
inline float from_float<float>(float v) {
  return v;
}
template <>
inline bf16 from_float<bf16>(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return bf16{static_cast<uint16_t>((u >> 16) | 0x40)};  // quiet NaN
  return bf16{static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
template <>
inline f16 from_float<f16>(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return f16{static_cast<uint16_t>(sign | 0x7e00)};
  if (u >= 0x477ff000) return f16{static_cast<uint16_t>(sign | 0x7c00)};  // rounds past 65504
  if (u < 0x38800000) {                                                   // subnormal result
    float f;
    std::memcpy(&f, &u, 4);
    f += 0.5f;  // aligns the 2^-24 grid with the last mantissa bit: the addition rounds
    std::memcpy(&u, &f, 4);
    return f16{static_cast<uint16_t>(sign | (u - 0x3f000000))};
  }
  return f16{static_cast<uint16_t>(sign | ((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13))};
}

}  // namespace aloft
