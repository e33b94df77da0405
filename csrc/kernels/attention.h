// Attention over dense or paged keys and values: forward for every attention operator, and the
// backward of the training one. fp32 softmax and accumulation for every element type.
//
// A row's result depends on its own sequence only (its query count, key positions, heads), never on what
// else is in the call: key ranges are cut at multiples of fixed positions and merged in order.
#pragma once
#include <cstdint>

#include "kernels/api.h"

namespace aloft {

enum class AttentionType : int { F32 = 0, F16 = 1, BF16 = 2 };
enum class AttentionKv : int { Same = 0, F32 = 1, Int8 = 2, Fp8 = 3 };

// "No bound" for the visibility shifts; far above any length, far below overflow.
constexpr int64_t kAttentionFar = int64_t{1} << 40;

// One sequence of the call. Pointers are to element (row 0, head 0).
struct AttentionSequence {
  int64_t q_len = 0, kv_len = 0;
  const void* q = nullptr;
  const void* q_rope = nullptr;     // optional second part of the query
  const void* k = nullptr;          // dense: key row 0; paged: start of the cache
  const void* k_rope = nullptr;     // like k
  const void* v = nullptr;          // like k
  const int32_t* blocks = nullptr;  // paged: physical block of tokens [j * block_size, ...)
  void* out = nullptr;
  float* lse = nullptr;          // optional: ln of the sum of exp(scores), sinks left out
  float* softmax_max = nullptr;  // optional, with softmax_sum: row maximum and sum, sinks included
  float* softmax_sum = nullptr;
  int64_t stat_token = 0, stat_head = 0;  // of softmax_max and softmax_sum, which hold 8 equal values a row
  const uint8_t* mask = nullptr;          // optional: != 0 hides; element (row 0, key 0)
  const void* pse = nullptr;              // optional additive bias; element (head 0, row 0, key 0)
  // Key j is visible to row i when i + low <= j <= max(i + high, prefix - 1).
  int64_t low = -kAttentionFar, high = kAttentionFar, prefix = 0;
  int64_t drop_bit = 0;  // first bit of this sequence in the dropout mask: [heads, q_len, kv_len]
};

struct AttentionProblem {
  AttentionType type = AttentionType::F32;  // of q, k, v, ropes, out and (pse_type below) pse
  AttentionType pse_type = AttentionType::F32;
  int64_t heads = 0, kv_heads = 0;  // kv_heads divides heads
  int64_t d = 0, d_rope = 0, d_v = 0;
  float scale = 1.f;
  float soft_cap = 0.f;                // > 0: scores become cap * tanh(score / cap)
  bool pse_before_scale = false;       // (q.k + pse) * scale instead of q.k * scale + pse
  const float* sinks = nullptr;        // [heads]: one more logit a head, without a value
  float empty_lse = 0.f;               // lse of a row that sees nothing
  const uint8_t* drop_mask = nullptr;  // bits, 1 keeps; kept values are divided by keep_prob
  float keep_prob = 1.f;
  // Keys and values of another type than the rest (forward only, without ropes). Int8: k = (key + k_offset) * k_scale
  // with scales [kv_heads, d] and [kv_heads, d_v]; offsets may be null. Fp8: k = e4m3 * 2^exponent with an exponent a
  // token, [blocks, block_size] of the paged cache (kernels/kv_fp8.h).
  AttentionKv kv = AttentionKv::Same;
  const float* k_scale = nullptr;
  const float* k_offset = nullptr;
  const float* v_scale = nullptr;
  const float* v_offset = nullptr;
  const int8_t* k_exponents = nullptr;
  const int8_t* v_exponents = nullptr;
  int64_t exponent_block = 0;  // step between blocks
  // Strides in elements.
  int64_t q_token = 0, q_head = 0, q_rope_token = 0, q_rope_head = 0;
  int64_t k_token = 0, k_head = 0, k_block = 0, k_chunk = 16;
  int64_t k_rope_token = 0, k_rope_head = 0, k_rope_block = 0, k_rope_chunk = 16;
  int64_t v_token = 0, v_head = 0, v_block = 0, v_chunk = 16;  // chunk: step between 16-element pieces of a row
  int64_t block_size = 0;                                      // of the paged cache
  int64_t out_token = 0, out_head = 0;
  int64_t lse_token = 0, lse_head = 0;
  int64_t mask_head = 0, mask_token = 0;
  int64_t pse_head = 0, pse_token = 0;
  const AttentionSequence* sequences = nullptr;
  int64_t count = 0;
};

// With `recent`, a row attends to the keys of both: the same queries, heads, outputs and sequences, other keys and
// bounds, so that no key is seen twice. Sinks are those of `problem`.
ALOFT_KERNEL_API void attention_forward(const AttentionProblem& problem, const AttentionProblem* recent = nullptr);

// Where the gradients of a sequence go; element (row 0, head 0) of each, strides in AttentionGrad.
struct AttentionGradSequence {
  const void* d_out = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  void* dq_rope = nullptr;
  void* dk_rope = nullptr;
  float* dpse = nullptr;  // fp32 image of the bias, strides of the bias; added to
};

// The backward of attention_forward for dense keys: the problem as it was run forward, with `out`,
// softmax_max and softmax_sum as the forward left them.
struct AttentionGrad {
  int64_t d_out_token = 0, d_out_head = 0;
  int64_t dq_token = 0, dq_head = 0, dq_rope_token = 0, dq_rope_head = 0;
  int64_t dk_token = 0, dk_head = 0, dk_rope_token = 0, dk_rope_head = 0;
  int64_t dv_token = 0, dv_head = 0;
  float* dsinks = nullptr;  // [heads], written
  const AttentionGradSequence* sequences = nullptr;
};

ALOFT_KERNEL_API void attention_backward(const AttentionProblem& problem, const AttentionGrad& grad);

}  // namespace aloft
