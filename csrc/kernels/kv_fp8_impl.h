// The writer of 8-bit keys and values, compiled once for each instruction set.
#pragma once
#include "kernels/kv_fp8.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

typedef uint8_t u8x8 __attribute__((vector_size(8)));

inline int64_t fp8_index(const void* of, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(of)[i] : static_cast<const int32_t*>(of)[i];
}

// Codes of x / 2^exponent, of which no magnitude exceeds 448.
ALOFT_INLINE u8x8 fp8_codes(f32x8 x, f32x8 inverse) {
  const u32x8 scaled = (u32x8)(x * inverse), magnitude = scaled & 0x7fffffff;
  const u32x8 normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
  // 2^14 has its last bit at 2^-9: the addition rounds to a multiple of it
  const u32x8 small = (u32x8)((f32x8)magnitude + splat(16384.f)) - 0x46800000;
  const u32x8 code = (magnitude < splat_u(0x3c800000) ? small : normal) | (scaled >> 24 & 0x80);
  return __builtin_convertvector(code, u8x8);
}

// The exponent of a token whose largest magnitude has these bits.
inline int fp8_exponent(uint32_t largest) {
  if (largest >= 0x7f800000) return kFp8NotFinite;
  // 448 is 1.75 * 2^8: a larger mantissa takes the next exponent
  const int e = static_cast<int>((largest + 0x1fffff) >> 23) - 127 - 8;
  return e < kFp8Lowest ? kFp8Lowest : e;
}

template <class T>
void fp8_token(const Fp8Write& c, const T* x, uint8_t* codes, int8_t* exponent) {
  u32x8 top = splat_u(0);
  for (int64_t h = 0; h < c.heads; ++h) {
    const T* row = x + h * c.x_head;
    int64_t i = 0;
    const auto take = [&top](f32x8 v) {
      const u32x8 bits = (u32x8)v & 0x7fffffff;
      top = bits > top ? bits : top;
    };
    for (; i + kLanes <= c.d; i += kLanes) take(load(row + i));
    if (i < c.d) take(load_tail(row + i, c.d - i));
  }
  uint32_t largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = top[i] > largest ? top[i] : largest;
  const int e = fp8_exponent(largest);
  *exponent = static_cast<int8_t>(e);
  if (e == kFp8NotFinite) {
    for (int64_t h = 0; h < c.heads; ++h) std::memset(codes + h * c.code_head, 0, static_cast<size_t>(c.d));
    return;
  }
  const uint32_t bits = static_cast<uint32_t>(127 - e) << 23;
  float inverse;
  std::memcpy(&inverse, &bits, 4);
  for (int64_t h = 0; h < c.heads; ++h) {
    const T* row = x + h * c.x_head;
    uint8_t* to = codes + h * c.code_head;
    int64_t i = 0;
    for (; i + kLanes <= c.d; i += kLanes) {
      const u8x8 made = fp8_codes(load(row + i), splat(inverse));
      std::memcpy(to + i, &made, kLanes);
    }
    if (i < c.d) {
      const u8x8 made = fp8_codes(load_tail(row + i, c.d - i), splat(inverse));
      std::memcpy(to + i, &made, static_cast<size_t>(c.d - i));
    }
  }
}

template <class T>
void fp8_tokens(const Fp8Write& c, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = fp8_index(c.slots, c.wide_slots, t);
    if (slot < 0) continue;
    const int64_t block = slot / c.block_size, inside = slot % c.block_size;
    const int64_t row = c.source ? fp8_index(c.source, c.wide_source, t) : t;
    fp8_token(c, static_cast<const T*>(c.x) + row * c.x_token, c.codes + block * c.code_block + inside * c.code_token,
              c.exponents + block * c.exponent_block + inside);
  }
}

void fp8_rows(const Fp8Write& c, int64_t begin, int64_t end) {
  if (c.type == AttentionType::F32) return fp8_tokens<float>(c, begin, end);
  if (c.type == AttentionType::F16) return fp8_tokens<f16>(c, begin, end);
  fp8_tokens<bf16>(c, begin, end);
}

}  // namespace
}  // namespace aloft
