// The aclnn names under which the inference attention is asked for.
#include "opapi/attention_infer.h"

namespace aloft {
namespace {

constexpr char kQuantised[] = "quantised attention";

// What every version has, in the order of the C interface up to the rope operands.
#define ALOFT_FIA_HEAD                                                                                               \
  const aclTensor *query, const aclTensorList *key, const aclTensorList *value, const aclTensor *pse_shift,          \
      const aclTensor *atten_mask, const aclIntArray *q_lengths, const aclIntArray *kv_lengths,                      \
      const aclTensor *dequant_scale1, const aclTensor *quant_scale1, const aclTensor *dequant_scale2,               \
      const aclTensor *quant_scale2, const aclTensor *quant_offset2, const aclTensor *antiquant_scale,               \
      const aclTensor *antiquant_offset, const aclTensor *block_table, const aclTensor *query_padding_size,          \
      const aclTensor *kv_padding_size, const aclTensor *key_antiquant_scale, const aclTensor *key_antiquant_offset, \
      const aclTensor *value_antiquant_scale, const aclTensor *value_antiquant_offset,                               \
      const aclTensor *key_shared_prefix, const aclTensor *value_shared_prefix,                                      \
      const aclIntArray *shared_prefix_lengths
#define ALOFT_FIA_HEAD_NAMES                                                                                     \
  query, key, value, pse_shift, atten_mask, q_lengths, kv_lengths, dequant_scale1, quant_scale1, dequant_scale2, \
      quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table, query_padding_size,           \
      kv_padding_size, key_antiquant_scale, key_antiquant_offset, value_antiquant_scale, value_antiquant_offset, \
      key_shared_prefix, value_shared_prefix, shared_prefix_lengths
#define ALOFT_FIA_TAIL                                                                                              \
  int64_t heads, double scale, int64_t pre, int64_t next, char *layout, int64_t kv_heads, int64_t sparse_mode,      \
      int64_t inner_precise, int64_t block_size, int64_t antiquant_mode, bool want_lse, int64_t key_antiquant_mode, \
      int64_t value_antiquant_mode
#define ALOFT_FIA_TAIL_NAMES                                                                                   \
  heads, scale, pre, next, layout, kv_heads, sparse_mode, inner_precise, block_size, antiquant_mode, want_lse, \
      key_antiquant_mode, value_antiquant_mode

InferAttention head(ALOFT_FIA_HEAD) {
  refuse_operand(dequant_scale1, "dequant_scale1", kQuantised);
  refuse_operand(quant_scale1, "quant_scale1", kQuantised);
  refuse_operand(dequant_scale2, "dequant_scale2", kQuantised);
  refuse_operand(quant_scale2, "quant_scale2", "int8 output of attention");
  refuse_operand(quant_offset2, "quant_offset2", "int8 output of attention");
  refuse_operand(query_padding_size, "query_padding_size", "left padding");
  refuse_operand(kv_padding_size, "kv_padding_size", "left padding");
  refuse_operand(key_shared_prefix, "key_shared_prefix", "a shared prefix");
  refuse_operand(value_shared_prefix, "value_shared_prefix", "a shared prefix");
  InferAttention a;
  a.query = query, a.key = only_tensor("key", key), a.value = only_tensor("value", value);
  a.pse_shift = pse_shift, a.atten_mask = atten_mask, a.q_lengths = q_lengths, a.kv_lengths = kv_lengths;
  a.block_table = block_table;
  a.kv_scale = antiquant_scale, a.kv_offset = antiquant_offset;
  a.key_scale = key_antiquant_scale, a.key_offset = key_antiquant_offset;
  a.value_scale = value_antiquant_scale, a.value_offset = value_antiquant_offset;
  return a;
}

void tail(InferAttention* a, ALOFT_FIA_TAIL) {
  require(inner_precise >= 0 && inner_precise <= 3, "inner_precise is %lld; valid: 0, 1, 2, 3",
          static_cast<long long>(inner_precise));
  a->heads = heads, a->scale = scale, a->pre = pre, a->next = next, a->layout = layout, a->kv_heads = kv_heads;
  a->sparse_mode = sparse_mode, a->block_size = block_size, a->want_lse = want_lse;
  a->kv_mode = antiquant_mode, a->key_mode = key_antiquant_mode, a->value_mode = value_antiquant_mode;
}

}  // namespace

ALOFT_ACLNN(FusedInferAttentionScoreV2, (ALOFT_FIA_HEAD, ALOFT_FIA_TAIL, const aclTensor* out, const aclTensor* lse),
            (ALOFT_FIA_HEAD_NAMES, ALOFT_FIA_TAIL_NAMES, out, lse)) {
  InferAttention a = head(ALOFT_FIA_HEAD_NAMES);
  tail(&a, ALOFT_FIA_TAIL_NAMES);
  a.out = out, a.lse = lse;
  return plan_infer_attention(a);
}

#define ALOFT_FIA_V3                                                                                       \
  ALOFT_FIA_HEAD, const aclTensor *query_rope, const aclTensor *key_rope, const aclTensor *key_rope_scale, \
      ALOFT_FIA_TAIL, const aclTensor *out, const aclTensor *lse
#define ALOFT_FIA_V4                                                                                       \
  ALOFT_FIA_HEAD, const aclTensor *query_rope, const aclTensor *key_rope, const aclTensor *key_rope_scale, \
      const aclTensor *query_scale, const aclTensor *sink, ALOFT_FIA_TAIL, int64_t query_quant_mode,       \
      const aclTensor *out, const aclTensor *lse
#define ALOFT_FIA_V5                                                                                                \
  ALOFT_FIA_HEAD, const aclTensor *query_rope, const aclTensor *key_rope, const aclTensor *key_rope_scale,          \
      const aclTensor *query_scale, const aclTensor *sink, const aclIntArray *q_start, const aclIntArray *kv_start, \
      ALOFT_FIA_TAIL, int64_t query_quant_mode, int64_t pse_type, const aclTensor *out, const aclTensor *lse

ALOFT_ACLNN(FusedInferAttentionScoreV3, (ALOFT_FIA_V3),
            (ALOFT_FIA_HEAD_NAMES, query_rope, key_rope, key_rope_scale, ALOFT_FIA_TAIL_NAMES, out, lse)) {
  InferAttention a = head(ALOFT_FIA_HEAD_NAMES);
  refuse_operand(key_rope_scale, "key_rope_antiquant_scale", "a quantised key/value cache");
  tail(&a, ALOFT_FIA_TAIL_NAMES);
  a.query_rope = query_rope, a.key_rope = key_rope, a.out = out, a.lse = lse;
  return plan_infer_attention(a);
}

ALOFT_ACLNN(FusedInferAttentionScoreV4, (ALOFT_FIA_V4),
            (ALOFT_FIA_HEAD_NAMES, query_rope, key_rope, key_rope_scale, query_scale, sink, ALOFT_FIA_TAIL_NAMES,
             query_quant_mode, out, lse)) {
  InferAttention a = head(ALOFT_FIA_HEAD_NAMES);
  refuse_operand(key_rope_scale, "dequant_scale_key_rope", "a quantised key/value cache");
  refuse_operand(query_scale, "dequant_scale_query", kQuantised);
  tail(&a, ALOFT_FIA_TAIL_NAMES);
  a.query_rope = query_rope, a.key_rope = key_rope, a.sink = sink, a.out = out, a.lse = lse;
  return plan_infer_attention(a);
}

ALOFT_ACLNN(FusedInferAttentionScoreV5, (ALOFT_FIA_V5),
            (ALOFT_FIA_HEAD_NAMES, query_rope, key_rope, key_rope_scale, query_scale, sink, q_start, kv_start,
             ALOFT_FIA_TAIL_NAMES, query_quant_mode, pse_type, out, lse)) {
  InferAttention a = head(ALOFT_FIA_HEAD_NAMES);
  refuse_operand(key_rope_scale, "dequant_scale_key_rope", "a quantised key/value cache");
  refuse_operand(query_scale, "dequant_scale_query", kQuantised);
  require(pse_type == 0 || pse_type == 1, "pse_type is %lld; the virtual NPU has 0 and 1",
          static_cast<long long>(pse_type));
  tail(&a, ALOFT_FIA_TAIL_NAMES);
  a.query_rope = query_rope, a.key_rope = key_rope, a.sink = sink, a.out = out, a.lse = lse;
  return plan_infer_attention(a);
}

ALOFT_ACLNN(PromptFlashAttentionV3,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse_shift,
             const aclTensor* atten_mask, const aclIntArray* q_lengths, const aclIntArray* kv_lengths,
             const aclTensor* dequant_scale1, const aclTensor* quant_scale1, const aclTensor* dequant_scale2,
             const aclTensor* quant_scale2, const aclTensor* quant_offset2, int64_t heads, double scale, int64_t pre,
             int64_t next, char* layout, int64_t kv_heads, int64_t sparse_mode, int64_t inner_precise,
             const aclTensor* out),
            (query, key, value, pse_shift, atten_mask, q_lengths, kv_lengths, dequant_scale1, quant_scale1,
             dequant_scale2, quant_scale2, quant_offset2, heads, scale, pre, next, layout, kv_heads, sparse_mode,
             inner_precise, out)) {
  refuse_operand(dequant_scale1, "deq_scale1", kQuantised);
  refuse_operand(quant_scale1, "quant_scale1", kQuantised);
  refuse_operand(dequant_scale2, "deq_scale2", kQuantised);
  refuse_operand(quant_scale2, "quant_scale2", "int8 output of attention");
  refuse_operand(quant_offset2, "quant_offset2", "int8 output of attention");
  InferAttention a;
  a.query = query, a.key = key, a.value = value, a.pse_shift = pse_shift, a.atten_mask = atten_mask;
  a.q_lengths = q_lengths, a.kv_lengths = kv_lengths, a.out = out;
  tail(&a, heads, scale, pre, next, layout, kv_heads, sparse_mode, inner_precise, 0, 0, false, 0, 0);
  return plan_infer_attention(a);
}

ALOFT_ACLNN(IncreFlashAttentionV4,
            (const aclTensor* query, const aclTensorList* key, const aclTensorList* value, const aclTensor* pse_shift,
             const aclTensor* atten_mask, const aclIntArray* kv_lengths, const aclTensor* dequant_scale1,
             const aclTensor* quant_scale1, const aclTensor* dequant_scale2, const aclTensor* quant_scale2,
             const aclTensor* quant_offset2, const aclTensor* antiquant_scale, const aclTensor* antiquant_offset,
             const aclTensor* block_table, const aclTensor* kv_padding_size, int64_t heads, double scale, char* layout,
             int64_t kv_heads, int64_t block_size, int64_t inner_precise, const aclTensor* out),
            (query, key, value, pse_shift, atten_mask, kv_lengths, dequant_scale1, quant_scale1, dequant_scale2,
             quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table, kv_padding_size, heads, scale,
             layout, kv_heads, block_size, inner_precise, out)) {
  InferAttention a = head(query, key, value, pse_shift, atten_mask, nullptr, kv_lengths, dequant_scale1, quant_scale1,
                          dequant_scale2, quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table,
                          nullptr, kv_padding_size, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  tail(&a, heads, scale, INT32_MAX, INT32_MAX, layout, kv_heads, 0, inner_precise, block_size, 0, false, 0, 0);
  a.out = out;
  return plan_infer_attention(a);
}

namespace {
// These operators need no workspace. The caller destroys the executor it is given.
int no_workspace(const char* name, uint64_t* size, aclOpExecutor** executor) {
  return plan_operator(name, size, executor, [] { return Work(); });
}
}  // namespace

ALOFT_API int aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize(ALOFT_FIA_V3, uint64_t* size,
                                                                 aclOpExecutor** executor) {
  return no_workspace("aclnnFusedInferAttentionScoreV3", size, executor);
}
ALOFT_API int aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize(ALOFT_FIA_V4, uint64_t* size,
                                                                 aclOpExecutor** executor) {
  return no_workspace("aclnnFusedInferAttentionScoreV4", size, executor);
}
ALOFT_API int aclnnFusedInferAttentionScoreV5GetMaxWorkspaceSize(ALOFT_FIA_V5, uint64_t* size,
                                                                 aclOpExecutor** executor) {
  return no_workspace("aclnnFusedInferAttentionScoreV5", size, executor);
}

}  // namespace aloft
