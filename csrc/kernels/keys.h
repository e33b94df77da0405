// Unsigned integers that sort as values do: NaN last, -0 like 0. Static: see half.h.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/half.h"

namespace aloft {

static inline uint32_t sort_key(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if (u == 0x80000000u) u = 0;
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}
static inline uint16_t sort_key(bf16 v) {
  uint16_t u = v.bits;
  if ((u & 0x7fff) > 0x7f80) return 0xffff;
  if (u == 0x8000) u = 0;
  return static_cast<uint16_t>((u & 0x8000) ? ~u : u | 0x8000);
}
static inline uint16_t sort_key(f16 v) {
  uint16_t u = v.bits;
  if ((u & 0x7fff) > 0x7c00) return 0xffff;
  if (u == 0x8000) u = 0;
  return static_cast<uint16_t>((u & 0x8000) ? ~u : u | 0x8000);
}
template <class T, std::enable_if_t<std::is_integral<T>::value, int> = 0>
static inline std::make_unsigned_t<T> sort_key(T v) {
  using U = std::make_unsigned_t<T>;
  return std::is_signed<T>::value ? static_cast<U>(static_cast<U>(v) ^ (U{1} << (8 * sizeof(T) - 1)))
                                  : static_cast<U>(v);
}

// The value a key of fp32 stands for (never -0).
static inline float key_value(uint32_t key) {
  const uint32_t u = (key & 0x80000000u) ? key & 0x7fffffffu : ~key;
  float v;
  std::memcpy(&v, &u, 4);
  return v;
}

}  // namespace aloft
