// The inference attention operators (fused infer V2..V5, prompt, incremental) as one set of arguments.
#pragma once
#include "opapi/attention.h"

namespace aloft {

struct InferAttention {
  const aclTensor* query = nullptr;
  const aclTensor* key = nullptr;
  const aclTensor* value = nullptr;
  const aclTensor* pse_shift = nullptr;
  const aclTensor* atten_mask = nullptr;
  const aclIntArray* q_lengths = nullptr;
  const aclIntArray* kv_lengths = nullptr;
  const aclTensor* block_table = nullptr;
  const aclTensor* query_rope = nullptr;
  const aclTensor* key_rope = nullptr;
  const aclTensor* sink = nullptr;
  // int8 keys and values: separate scales, or both stacked on a leading dimension of 2.
  const aclTensor *key_scale = nullptr, *key_offset = nullptr, *value_scale = nullptr, *value_offset = nullptr;
  const aclTensor *kv_scale = nullptr, *kv_offset = nullptr;
  int64_t key_mode = 0, value_mode = 0, kv_mode = 0;
  int64_t heads = 1, kv_heads = 0, pre = INT32_MAX, next = INT32_MAX, sparse_mode = 0, block_size = 0;
  double scale = 1.;
  const char* layout = "BSH";
  bool want_lse = false;
  const aclTensor* out = nullptr;
  const aclTensor* lse = nullptr;
};

// Refuses operands that belong to features the virtual NPU does not have; `what` says which.
void refuse_operand(const aclTensor* t, const char* name, const char* what);
const aclTensor* only_tensor(const char* name, const aclTensorList* list);

Work plan_infer_attention(const InferAttention& a);

}  // namespace aloft
