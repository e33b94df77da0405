// Keys and values as int8: how their scales are given, and what the kernel makes of them.
#pragma once
#include <vector>

#include "opapi/attention.h"
#include "opapi/quant.h"

namespace aloft {

// One of key and value: x = (int8 + offset) * scale. Modes: 0 by channel or for all, 1 by token, 2 by head, 3 by token
// and head, 4 by token of the paged cache, 5 by token and head of it.
struct KvQuant {
  Tensor scale, offset;
  int64_t mode = 0;
  explicit operator bool() const { return scale.present; }
  bool by_token() const { return mode != 0 && mode != 2; }
};

struct KvShape {
  int64_t batch, kv_heads, d, tokens;  // tokens: the longest sequence's keys
  int64_t blocks, block_size;          // of a paged cache, else 0
};

// Refuses shapes and types that the mode does not have. `name` is "key" or "value".
void check_kv_quant(const char* name, const KvQuant& q, const KvShape& shape, DType query);

// Scales (or offsets) as [kv_heads, d], for modes 0 and 2.
std::vector<float> kv_channels(const Tensor& t, const KvShape& shape);

// Replaces int8 keys and values by fp32 copies, dense by sequence; for the modes by token. The copies are in *memory.
void widen_kv(const KvQuant& key, const KvQuant& value, const KvShape& key_shape, const KvShape& value_shape,
              AttentionProblem* p, std::vector<AttentionSequence>* sequences, std::vector<float>* memory);

}  // namespace aloft
