// Keys and values as 8-bit floats (e4m3) with one power of two a token: value = e4m3 * 2^exponent.
//
// A token's codes and exponent depend on its own values only. The exponent is the smallest that keeps the largest
// magnitude of the token (all heads) at 448 or below, e4m3's largest number, but at least -100; codes are rounded half
// to even, numbers below 2^-9 * 2^exponent to e4m3's multiples of that. A token with a value that is not finite gets
// the exponent kFp8NotFinite and reads as NaN as a whole.
#pragma once
#include <cstdint>

#include "kernels/api.h"
#include "kernels/attention.h"

namespace aloft {

constexpr int kFp8NotFinite = -128, kFp8Lowest = -100;

// One of keys and values. Strides in elements; rows of `d` are contiguous.
struct Fp8Write {
  AttentionType type = AttentionType::BF16;
  int64_t tokens = 0, heads = 0, d = 0;
  const void* x = nullptr;  // row `source[t]` (or t) of token t, head 0
  int64_t x_token = 0, x_head = 0;
  const void* source = nullptr;  // int32 or int64, optional
  uint8_t* codes = nullptr;      // the cache: token t is written to slot `slots[t]`; a negative slot drops it
  int64_t code_block = 0, code_token = 0, code_head = 0;
  int8_t* exponents = nullptr;  // [blocks, block_size], rows contiguous
  int64_t exponent_block = 0;
  const void* slots = nullptr;  // int32 or int64
  int64_t block_size = 0;
  bool wide_slots = false, wide_source = false;  // int64
};
ALOFT_KERNEL_API void kv_fp8_write(const Fp8Write& call);

}  // namespace aloft
