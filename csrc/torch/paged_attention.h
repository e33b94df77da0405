// aloft::paged_attention for other operators of this library.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace aloft {

// The sequences of a step: as the arguments of aloft::paged_attention.
struct PagedStep {
  const at::Tensor& block_table;
  at::IntArrayRef cu_query_lens, kv_lens;
};

// Causal attention of query [T, Hq, D] over the caches into out [T, Hq, D], on the current stream.
void paged_attention_into(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                          const PagedStep& step, int64_t num_kv_heads, double scale, int64_t window_left,
                          double soft_cap, at::Tensor& out);

}  // namespace aloft
