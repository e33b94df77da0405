// The training attention operators (flash attention score and its gradient, padded and packed) as one set of arguments.
#pragma once
#include "opapi/attention.h"

namespace aloft {

struct FusionAttention {
  const aclTensor* query = nullptr;
  const aclTensor* key = nullptr;
  const aclTensor* value = nullptr;
  const aclTensor* query_rope = nullptr;
  const aclTensor* key_rope = nullptr;
  const aclTensor* pse = nullptr;
  const aclTensor* drop_mask = nullptr;
  const aclTensor* padding_mask = nullptr;
  const aclTensor* atten_mask = nullptr;
  const aclTensor* sink = nullptr;
  const aclIntArray* prefix = nullptr;
  const aclIntArray* q_lengths = nullptr;  // with kv_lengths: packed, cumulative
  const aclIntArray* kv_lengths = nullptr;
  double scale = 1., keep_prob = 1.;
  int64_t pre = INT32_MAX, next = INT32_MAX, heads = 1, inner_precise = 0, sparse_mode = 0, pse_type = 1;
  const char* layout = "BSH";
  const char* softmax_layout = "";  // packed: "same_as_input", else statistics lie [heads, tokens, 8] a sequence
  const aclTensor* softmax_max = nullptr;
  const aclTensor* softmax_sum = nullptr;
  const aclTensor* out = nullptr;
};

struct FusionAttentionGrad {
  const aclTensor* dy = nullptr;
  const aclTensor* dq = nullptr;
  const aclTensor* dk = nullptr;
  const aclTensor* dv = nullptr;
  const aclTensor* dq_rope = nullptr;
  const aclTensor* dk_rope = nullptr;
  const aclTensor* dpse = nullptr;
  const aclTensor* dsink = nullptr;
};

Work plan_fusion_attention(const FusionAttention& a);
// `a.out`, `a.softmax_max`, `a.softmax_sum`: what the forward returned.
Work plan_fusion_attention_grad(const FusionAttention& a, const FusionAttentionGrad& g);

}  // namespace aloft
