// What follows a QKV projection, token by token: norms of the query and key heads, rotary position embedding, and keys
// and values into their slots of a paged cache. Each part is the kernel of the operator it replaces (norm.h, rotary.h),
// so results are those of the operators one after the other, bit for bit.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// One half of a paged cache, [blocks, block_size, heads, d]; strides in elements, rows of d dense.
struct PagedRows {
  void* data = nullptr;
  int64_t block = 0, token = 0, head = 0;
};

struct QkvArgs {
  DType dtype = DType::F32;  // of everything but the slots
  int64_t tokens = 0, heads = 0, kv_heads = 0, d = 0;
  void* qkv = nullptr;           // [tokens, heads + 2 * kv_heads, d] dense: query, key, value; overwritten
  const void* q_norm = nullptr;  // [d]; null: no norm
  const void* k_norm = nullptr;
  float epsilon = 1e-6f;
  const void *cos = nullptr, *sin = nullptr;  // [tokens, d_rotary / 2], one entry a pair, dense rows
  int64_t cos_stride = 0, sin_stride = 0, d_rotary = 0;
  bool interleaved = false;  // pairs 2 i and 2 i + 1 instead of i and i + d_rotary / 2
  void* query = nullptr;     // [tokens, heads, d] dense
  PagedRows key, value;
  int64_t block_size = 0;
  const void* slots = nullptr;    // [tokens]: block * block_size + offset; negative: the token is not written
  DType slot_dtype = DType::I64;  // or I32
};
// Of two tokens with one slot either may stay. The slots are not checked.
ALOFT_KERNEL_API void finish_qkv(const QkvArgs& args);

}  // namespace aloft
