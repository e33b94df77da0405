// The aclnn names under which the training attention is asked for. Lists of start indices belong to the built-in slopes
// (pse types 2 and 3), which the plan refuses.
#include "opapi/attention_fusion.h"

namespace aloft {

namespace {

// What every version has; the rest is set by name.
FusionAttention common(const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
                       const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
                       const aclIntArray* prefix, double scale, double keep_prob, int64_t pre, int64_t next,
                       int64_t heads, char* layout, int64_t inner_precise, int64_t sparse_mode,
                       const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor* out) {
  FusionAttention a;
  a.query = query;
  a.key = key;
  a.value = value;
  a.pse = pse;
  a.drop_mask = drop_mask;
  a.padding_mask = padding_mask;
  a.atten_mask = atten_mask;
  a.prefix = prefix;
  a.scale = scale;
  a.keep_prob = keep_prob;
  a.pre = pre;
  a.next = next;
  a.heads = heads;
  a.layout = layout;
  a.inner_precise = inner_precise;
  a.sparse_mode = sparse_mode;
  a.softmax_max = softmax_max;
  a.softmax_sum = softmax_sum;
  a.out = out;
  return a;
}

FusionAttentionGrad gradients(const aclTensor* dy, const aclTensor* dq, const aclTensor* dk, const aclTensor* dv,
                              const aclTensor* dpse) {
  FusionAttentionGrad g;
  g.dy = dy;
  g.dq = dq;
  g.dk = dk;
  g.dv = dv;
  g.dpse = dpse;
  return g;
}

}  // namespace

ALOFT_ACLNN(FlashAttentionScore,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
             const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
             const aclIntArray* prefix, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads,
             char* layout, int64_t inner_precise, int64_t sparse_mode, const aclTensor* softmax_max,
             const aclTensor* softmax_sum, const aclTensor* softmax_out, const aclTensor* out),
            (query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre, next, heads,
             layout, inner_precise, sparse_mode, softmax_max, softmax_sum, softmax_out, out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionScoreV2,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
             const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
             const aclIntArray* prefix, const aclIntArray* q_start, const aclIntArray* kv_start, double scale,
             double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout, int64_t inner_precise,
             int64_t sparse_mode, int64_t pse_type, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_out, const aclTensor* out),
            (query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_start, kv_start, scale, keep_prob,
             pre, next, heads, layout, inner_precise, sparse_mode, pse_type, softmax_max, softmax_sum, softmax_out,
             out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.pse_type = pse_type;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionScoreV3,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
             const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
             const aclTensor* sink, const aclIntArray* prefix, const aclIntArray* q_start, const aclIntArray* kv_start,
             double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout,
             int64_t inner_precise, int64_t sparse_mode, int64_t pse_type, const aclTensor* softmax_max,
             const aclTensor* softmax_sum, const aclTensor* softmax_out, const aclTensor* out),
            (query, key, value, pse, drop_mask, padding_mask, atten_mask, sink, prefix, q_start, kv_start, scale,
             keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, pse_type, softmax_max, softmax_sum,
             softmax_out, out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.sink = sink;
  a.pse_type = pse_type;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionVarLenScore,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
             const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
             const aclIntArray* prefix, const aclIntArray* q_lengths, const aclIntArray* kv_lengths, double scale,
             double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout, int64_t inner_precise,
             int64_t sparse_mode, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_out, const aclTensor* out),
            (query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, scale,
             keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, softmax_out,
             out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionVarLenScoreV2,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
             const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
             const aclIntArray* prefix, const aclIntArray* q_lengths, const aclIntArray* kv_lengths,
             const aclIntArray* q_start, const aclIntArray* kv_start, double scale, double keep_prob, int64_t pre,
             int64_t next, int64_t heads, char* layout, int64_t inner_precise, int64_t sparse_mode, int64_t pse_type,
             const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor* softmax_out,
             const aclTensor* out),
            (query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, q_start,
             kv_start, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, pse_type, softmax_max,
             softmax_sum, softmax_out, out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.pse_type = pse_type;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionVarLenScoreV3,
            (const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
             const aclTensor* value, const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclIntArray* prefix, const aclIntArray* q_lengths,
             const aclIntArray* kv_lengths, const aclIntArray* q_start, const aclIntArray* kv_start, double scale,
             double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout, int64_t inner_precise,
             int64_t sparse_mode, int64_t pse_type, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_out, const aclTensor* out),
            (query, query_rope, key, key_rope, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_lengths,
             kv_lengths, q_start, kv_start, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode,
             pse_type, softmax_max, softmax_sum, softmax_out, out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.query_rope = query_rope;
  a.key_rope = key_rope;
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.pse_type = pse_type;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionVarLenScoreV4,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* pse,
             const aclTensor* drop_mask, const aclTensor* padding_mask, const aclTensor* atten_mask,
             const aclIntArray* prefix, const aclIntArray* q_lengths, const aclIntArray* kv_lengths, double scale,
             double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout, int64_t inner_precise,
             int64_t sparse_mode, char* softmax_layout, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_out, const aclTensor* out),
            (query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, scale,
             keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, softmax_layout, softmax_max, softmax_sum,
             softmax_out, out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.softmax_layout = softmax_layout;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionVarLenScoreV5,
            (const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
             const aclTensor* value, const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* sink, const aclIntArray* prefix,
             const aclIntArray* q_lengths, const aclIntArray* kv_lengths, const aclIntArray* q_start,
             const aclIntArray* kv_start, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads,
             char* layout, int64_t inner_precise, int64_t sparse_mode, int64_t pse_type, char* softmax_layout,
             const aclTensor* softmax_max, const aclTensor* softmax_sum, const aclTensor* softmax_out,
             const aclTensor* out),
            (query, query_rope, key, key_rope, value, pse, drop_mask, padding_mask, atten_mask, sink, prefix, q_lengths,
             kv_lengths, q_start, kv_start, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode,
             pse_type, softmax_layout, softmax_max, softmax_sum, softmax_out, out)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.query_rope = query_rope;
  a.key_rope = key_rope;
  a.sink = sink;
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.pse_type = pse_type;
  a.softmax_layout = softmax_layout;
  return plan_fusion_attention(a);
}

ALOFT_ACLNN(FlashAttentionScoreGrad,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dy,
             const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_in, const aclTensor* out, const aclIntArray* prefix, double scale,
             double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout, int64_t inner_precise,
             int64_t sparse_mode, const aclTensor* dq, const aclTensor* dk, const aclTensor* dv, const aclTensor* dpse),
            (query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in, out,
             prefix, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, dq, dk, dv, dpse)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionScoreGradV2,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dy,
             const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_in, const aclTensor* out, const aclIntArray* prefix, const aclIntArray* q_start,
             const aclIntArray* kv_start, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads,
             char* layout, int64_t inner_precise, int64_t sparse_mode, int64_t pse_type, const aclTensor* dq,
             const aclTensor* dk, const aclTensor* dv, const aclTensor* dpse),
            (query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in, out,
             prefix, q_start, kv_start, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode,
             pse_type, dq, dk, dv, dpse)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.pse_type = pse_type;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionScoreGradV3,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dy,
             const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_in, const aclTensor* out, const aclTensor* sink, const aclIntArray* prefix,
             const aclIntArray* q_start, const aclIntArray* kv_start, double scale, double keep_prob, int64_t pre,
             int64_t next, int64_t heads, char* layout, int64_t inner_precise, int64_t sparse_mode, int64_t pse_type,
             const aclTensor* dq, const aclTensor* dk, const aclTensor* dv, const aclTensor* dpse,
             const aclTensor* dsink),
            (query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in, out,
             sink, prefix, q_start, kv_start, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode,
             pse_type, dq, dk, dv, dpse, dsink)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.sink = sink;
  a.pse_type = pse_type;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  g.dsink = dsink;
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionUnpaddingScoreGrad,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dy,
             const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_in, const aclTensor* out, const aclIntArray* prefix, const aclIntArray* q_lengths,
             const aclIntArray* kv_lengths, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads,
             char* layout, int64_t inner_precise, int64_t sparse_mode, const aclTensor* dq, const aclTensor* dk,
             const aclTensor* dv, const aclTensor* dpse),
            (query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in, out,
             prefix, q_lengths, kv_lengths, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, dq,
             dk, dv, dpse)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionUnpaddingScoreGradV2,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dy,
             const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_in, const aclTensor* out, const aclIntArray* prefix, const aclIntArray* q_lengths,
             const aclIntArray* kv_lengths, const aclIntArray* q_start, const aclIntArray* kv_start, double scale,
             double keep_prob, int64_t pre, int64_t next, int64_t heads, char* layout, int64_t inner_precise,
             int64_t sparse_mode, int64_t pse_type, const aclTensor* dq, const aclTensor* dk, const aclTensor* dv,
             const aclTensor* dpse),
            (query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in, out,
             prefix, q_lengths, kv_lengths, q_start, kv_start, scale, keep_prob, pre, next, heads, layout,
             inner_precise, sparse_mode, pse_type, dq, dk, dv, dpse)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.pse_type = pse_type;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionUnpaddingScoreGradV3,
            (const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
             const aclTensor* value, const aclTensor* dy, const aclTensor* pse, const aclTensor* drop_mask,
             const aclTensor* padding_mask, const aclTensor* atten_mask, const aclTensor* softmax_max,
             const aclTensor* softmax_sum, const aclTensor* softmax_in, const aclTensor* out, const aclIntArray* prefix,
             const aclIntArray* q_lengths, const aclIntArray* kv_lengths, const aclIntArray* q_start,
             const aclIntArray* kv_start, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads,
             char* layout, int64_t inner_precise, int64_t sparse_mode, int64_t pse_type, const aclTensor* dq,
             const aclTensor* dq_rope, const aclTensor* dk, const aclTensor* dk_rope, const aclTensor* dv,
             const aclTensor* dpse),
            (query, query_rope, key, key_rope, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max,
             softmax_sum, softmax_in, out, prefix, q_lengths, kv_lengths, q_start, kv_start, scale, keep_prob, pre,
             next, heads, layout, inner_precise, sparse_mode, pse_type, dq, dq_rope, dk, dk_rope, dv, dpse)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.query_rope = query_rope;
  a.key_rope = key_rope;
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.pse_type = pse_type;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  g.dq_rope = dq_rope;
  g.dk_rope = dk_rope;
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionUnpaddingScoreGradV4,
            (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dy,
             const aclTensor* pse, const aclTensor* drop_mask, const aclTensor* padding_mask,
             const aclTensor* atten_mask, const aclTensor* softmax_max, const aclTensor* softmax_sum,
             const aclTensor* softmax_in, const aclTensor* out, const aclIntArray* prefix, const aclIntArray* q_lengths,
             const aclIntArray* kv_lengths, double scale, double keep_prob, int64_t pre, int64_t next, int64_t heads,
             char* layout, int64_t inner_precise, int64_t sparse_mode, const aclTensor* dq, const aclTensor* dk,
             const aclTensor* dv, const aclTensor* dpse, char* softmax_layout),
            (query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in, out,
             prefix, q_lengths, kv_lengths, scale, keep_prob, pre, next, heads, layout, inner_precise, sparse_mode, dq,
             dk, dv, dpse, softmax_layout)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.softmax_layout = softmax_layout;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  return plan_fusion_attention_grad(a, g);
}

ALOFT_ACLNN(FlashAttentionUnpaddingScoreGradV5,
            (const aclTensor* query, const aclTensor* query_rope, const aclTensor* key, const aclTensor* key_rope,
             const aclTensor* value, const aclTensor* dy, const aclTensor* pse, const aclTensor* drop_mask,
             const aclTensor* padding_mask, const aclTensor* atten_mask, const aclTensor* softmax_max,
             const aclTensor* softmax_sum, const aclTensor* softmax_in, const aclTensor* out, const aclTensor* sink,
             const aclIntArray* prefix, const aclIntArray* q_lengths, const aclIntArray* kv_lengths,
             const aclIntArray* q_start, const aclIntArray* kv_start, double scale, double keep_prob, int64_t pre,
             int64_t next, int64_t heads, char* layout, int64_t inner_precise, int64_t sparse_mode, int64_t pse_type,
             char* softmax_layout, const aclTensor* dq, const aclTensor* dq_rope, const aclTensor* dk,
             const aclTensor* dk_rope, const aclTensor* dv, const aclTensor* dpse, const aclTensor* dsink),
            (query, query_rope, key, key_rope, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max,
             softmax_sum, softmax_in, out, sink, prefix, q_lengths, kv_lengths, q_start, kv_start, scale, keep_prob,
             pre, next, heads, layout, inner_precise, sparse_mode, pse_type, softmax_layout, dq, dq_rope, dk, dk_rope,
             dv, dpse, dsink)) {
  FusionAttention a = common(query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, scale, keep_prob, pre,
                             next, heads, layout, inner_precise, sparse_mode, softmax_max, softmax_sum, out);
  a.query_rope = query_rope;
  a.key_rope = key_rope;
  a.sink = sink;
  a.q_lengths = q_lengths;
  a.kv_lengths = kv_lengths;
  a.pse_type = pse_type;
  a.softmax_layout = softmax_layout;
  FusionAttentionGrad g = gradients(dy, dq, dk, dv, dpse);
  g.dq_rope = dq_rope;
  g.dk_rope = dk_rope;
  g.dsink = dsink;
  return plan_fusion_attention_grad(a, g);
}

}  // namespace aloft
