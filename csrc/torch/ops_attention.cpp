// aloft::paged_attention: paged attention without the limits of the fused-infer operator (float32, soft cap,
// any head size, window, sinks). On CANN a composite of documented operators takes its place
// (src/aloft/ops/paged_attention.py).
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "acl/launch.h"
#include "kernels/attention.h"
#include "opapi/work.h"
#include "torch/device.h"
#include "torch/paged_attention.h"
#include "torch/touches.h"

namespace aloft {
namespace {

constexpr char kName[] = "aloft::paged_attention";

struct Sizes {
  int64_t tokens, heads, d, d_v, block_size, blocks;
};

// Head size of a cache [blocks, block_size, heads * d] or [blocks, block_size, heads, d].
int64_t cache_head_size(const char* name, const at::Tensor& cache, int64_t heads) {
  TORCH_CHECK_VALUE(cache.dim() == 3 || cache.dim() == 4, kName, ": ", name, " has the shape ", cache.sizes(),
                    "; it must be [blocks, block_size, num_kv_heads * head_dim] or [blocks, block_size, num_kv_heads, "
                    "head_dim]");
  if (cache.dim() == 4) {
    TORCH_CHECK_VALUE(cache.size(2) == heads, kName, ": ", name, " has the shape ", cache.sizes(), ", num_kv_heads is ",
                      heads);
    return cache.size(3);
  }
  TORCH_CHECK_VALUE(cache.size(2) % heads == 0, kName, ": the last dimension of ", name, ", ", cache.size(2),
                    ", does not split into num_kv_heads ", heads);
  return cache.size(2) / heads;
}

Sizes check(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
            const at::Tensor& block_table, at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens, int64_t num_kv_heads,
            int64_t window_left, double soft_cap, const std::optional<at::Tensor>& sinks) {
  TORCH_CHECK_VALUE(query.dim() == 3, kName, ": query must be [tokens, heads, head_dim], got ", query.sizes());
  const at::ScalarType type = query.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, kName,
                    ": query must be float32, float16 or bfloat16, got ", type);
  TORCH_CHECK_VALUE(key_cache.scalar_type() == type && value_cache.scalar_type() == type, kName,
                    ": key_cache and value_cache must have query's dtype ", type, ", got ", key_cache.scalar_type(),
                    " and ", value_cache.scalar_type());
  TORCH_CHECK_VALUE(num_kv_heads > 0 && query.size(1) % num_kv_heads == 0, kName, ": query has ", query.size(1),
                    " heads, which num_kv_heads ", num_kv_heads, " does not divide");
  Sizes s{query.size(0), query.size(1), query.size(2), 0, key_cache.dim() > 1 ? key_cache.size(1) : 0, 0};
  const int64_t key_d = cache_head_size("key_cache", key_cache, num_kv_heads);
  s.d_v = cache_head_size("value_cache", value_cache, num_kv_heads);
  TORCH_CHECK_VALUE(key_d == s.d, kName, ": query has head_dim ", s.d, ", key_cache ", key_d);
  TORCH_CHECK_VALUE(s.d > 0 && s.d <= 512 && s.d_v > 0 && s.d_v <= 512, kName, ": head_dim must be 1 to 512, got ", s.d,
                    " and ", s.d_v);
  TORCH_CHECK_VALUE(value_cache.size(0) == key_cache.size(0) && value_cache.size(1) == s.block_size, kName,
                    ": value_cache ", value_cache.sizes(), " and key_cache ", key_cache.sizes(),
                    " differ in blocks or block size");
  s.blocks = key_cache.size(0);
  TORCH_CHECK_VALUE(block_table.dim() == 2 && block_table.scalar_type() == at::kInt, kName,
                    ": block_table must be int32 [sequences, blocks], got ", block_table.scalar_type(), " ",
                    block_table.sizes());
  TORCH_CHECK_VALUE(
      cu_query_lens.size() == kv_lens.size() && static_cast<int64_t>(kv_lens.size()) == block_table.size(0), kName,
      ": cu_query_lens has ", cu_query_lens.size(), " entries, kv_lens ", kv_lens.size(), ", block_table ",
      block_table.size(0), " rows: one a sequence each");
  int64_t before = 0;
  for (size_t i = 0; i < kv_lens.size(); ++i) {
    TORCH_CHECK_VALUE(cu_query_lens[i] >= before, kName, ": cu_query_lens decreases at entry ", i, ": ",
                      cu_query_lens[i], " after ", before);
    before = cu_query_lens[i];
    TORCH_CHECK_VALUE(kv_lens[i] >= 0 && kv_lens[i] <= block_table.size(1) * s.block_size, kName, ": kv_lens[", i,
                      "] is ", kv_lens[i], ", a row of block_table holds ", block_table.size(1), " blocks of ",
                      s.block_size, " tokens");
  }
  TORCH_CHECK_VALUE(before == s.tokens, kName, ": the last of cu_query_lens is ", before, ", query has ", s.tokens,
                    " tokens (cu_query_lens is cumulative without a leading 0)");
  TORCH_CHECK_VALUE(window_left >= -1, kName, ": window_left is ", window_left, "; -1 is no window, else >= 0");
  TORCH_CHECK_VALUE(soft_cap >= 0, kName, ": soft_cap is ", soft_cap, "; 0 is off, else positive");
  if (sinks && sinks->defined()) {
    TORCH_CHECK_VALUE(sinks->dim() == 1 && sinks->size(0) == s.heads && sinks->scalar_type() == at::kFloat, kName,
                      ": sinks must be float32 [", s.heads, "], got ", sinks->scalar_type(), " ", sinks->sizes());
  }
  return s;
}

at::Tensor unit_stride(const at::Tensor& t) { return t.stride(-1) == 1 || t.size(-1) <= 1 ? t : t.contiguous(); }

std::tuple<at::Tensor, at::Tensor> results(const Sizes& s, const at::Tensor& query, bool return_lse) {
  return {at::empty({s.tokens, s.heads, s.d_v}, query.options()),
          at::empty(return_lse ? at::IntArrayRef({s.tokens, s.heads}) : at::IntArrayRef({0}),
                    query.options().dtype(at::kFloat))};
}

struct Call {
  AttentionProblem problem;
  std::vector<AttentionSequence> sequences;
};

void compute(const Sizes& s, const at::Tensor& query_, const at::Tensor& key_, const at::Tensor& value_,
             const at::Tensor& table_, at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens, int64_t num_kv_heads,
             double scale, int64_t window_left, double soft_cap, bool causal, const std::optional<at::Tensor>& sinks_,
             const at::Tensor& out, const at::Tensor& lse) {
  if (s.tokens == 0) return;
  const c10::OptionalDeviceGuard guard(out.device());
  const at::Tensor query = unit_stride(query_), key = unit_stride(key_), value = unit_stride(value_);
  const at::Tensor table = table_.stride(1) == 1 || table_.size(1) <= 1 ? table_ : table_.contiguous();
  const at::Tensor sinks = sinks_ && sinks_->defined() ? sinks_->contiguous() : at::Tensor();
  Call call;
  AttentionProblem& p = call.problem;
  const at::ScalarType type = query.scalar_type();
  p.type = type == at::kFloat ? AttentionType::F32 : (type == at::kHalf ? AttentionType::F16 : AttentionType::BF16);
  p.heads = s.heads, p.kv_heads = num_kv_heads, p.d = s.d, p.d_v = s.d_v;
  p.scale = static_cast<float>(scale), p.soft_cap = static_cast<float>(soft_cap);
  p.empty_lse = -__builtin_inff();
  p.q_token = query.stride(0), p.q_head = query.stride(1);
  p.k_block = key.stride(0), p.k_token = key.stride(1), p.k_head = key.dim() == 4 ? key.stride(2) : s.d;
  p.v_block = value.stride(0), p.v_token = value.stride(1), p.v_head = value.dim() == 4 ? value.stride(2) : s.d_v;
  p.block_size = s.block_size;
  p.out_token = out.stride(0), p.out_head = out.stride(1);
  const bool with_lse = lse.numel() > 0;
  p.lse_token = with_lse ? lse.stride(0) : 0, p.lse_head = with_lse ? lse.stride(1) : 0;
  p.sinks = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
  const auto row = [](const at::Tensor& t, int64_t i) {
    return static_cast<char*>(t.data_ptr()) + i * t.stride(0) * static_cast<int64_t>(t.element_size());
  };
  int64_t first = 0;
  for (size_t b = 0; b < kv_lens.size(); ++b) {
    AttentionSequence q;
    q.q_len = cu_query_lens[b] - first, q.kv_len = kv_lens[b];
    q.q = row(query, first), q.out = row(out, first);
    q.k = key.data_ptr(), q.v = value.data_ptr();
    q.blocks = reinterpret_cast<const int32_t*>(row(table, static_cast<int64_t>(b)));
    if (with_lse) q.lse = reinterpret_cast<float*>(row(lse, first));
    const int64_t offset = q.kv_len - q.q_len;
    if (causal) q.high = offset;
    if (window_left >= 0) q.low = offset - window_left;
    first = cu_query_lens[b];
    call.sequences.push_back(q);
  }
  const int64_t blocks = s.blocks, block_size = s.block_size;
  auto work = [call = std::move(call), blocks, block_size]() mutable -> aclError {
    AttentionProblem& problem = call.problem;
    problem.sequences = call.sequences.data();
    problem.count = static_cast<int64_t>(call.sequences.size());
    for (size_t b = 0; b < call.sequences.size(); ++b) {
      const AttentionSequence& q = call.sequences[b];
      const int64_t used = (q.kv_len + block_size - 1) / block_size;
      for (int64_t j = 0; j < used; ++j)
        if (q.blocks[j] < 0 || q.blocks[j] >= blocks) {
          aloftSetError("%s: block_table[%zu][%lld] is %d, the cache has %lld blocks", kName, b,
                        static_cast<long long>(j), q.blocks[j], static_cast<long long>(blocks));
          return kRtInvalidParam;
        }
    }
    note_attention(problem);
    attention_forward(problem);
    return kOk;
  };
  const aclError error = launch(torch_route::current_stream(out.device().index()), kName, std::move(work),
                                [&] { return torch_route::touches({query, key, value, table, sinks}, {out, lse}); });
  if (error != kOk) torch_route::raise(error, kName);
}

std::tuple<at::Tensor, at::Tensor> paged_attention(const at::Tensor& query, const at::Tensor& key_cache,
                                                   const at::Tensor& value_cache, const at::Tensor& block_table,
                                                   at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens,
                                                   int64_t num_kv_heads, double scale, int64_t window_left,
                                                   double soft_cap, bool causal, const std::optional<at::Tensor>& sinks,
                                                   bool return_lse) {
  const Sizes s = check(query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, num_kv_heads, window_left,
                        soft_cap, sinks);
  auto made = results(s, query, return_lse);
  compute(s, query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, num_kv_heads, scale, window_left,
          soft_cap, causal, sinks, std::get<0>(made), std::get<1>(made));
  return made;
}

void check_out(const Sizes& s, const at::Tensor& query, const at::Tensor& out) {
  TORCH_CHECK_VALUE(out.sizes() == at::IntArrayRef({s.tokens, s.heads, s.d_v}) &&
                        out.scalar_type() == query.scalar_type() && out.device() == query.device(),
                    kName, ": out must be ", query.scalar_type(), " [", s.tokens, ", ", s.heads, ", ", s.d_v, "] on ",
                    query.device(), ", got ", out.scalar_type(), " ", out.sizes(), " on ", out.device());
  TORCH_CHECK_VALUE(s.d_v == 1 || out.stride(-1) == 1, kName, ": the last dimension of out must be contiguous");
}

std::tuple<at::Tensor&, at::Tensor> paged_attention_out(
    const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache, const at::Tensor& block_table,
    at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens, int64_t num_kv_heads, double scale, int64_t window_left,
    double soft_cap, bool causal, const std::optional<at::Tensor>& sinks, bool return_lse, at::Tensor& out) {
  const Sizes s = check(query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, num_kv_heads, window_left,
                        soft_cap, sinks);
  check_out(s, query, out);
  at::Tensor lse = std::get<1>(results({return_lse ? s.tokens : 0, s.heads, s.d, 0, 0, 0}, query, return_lse));
  compute(s, query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, num_kv_heads, scale, window_left,
          soft_cap, causal, sinks, out, lse);
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor> paged_attention_meta(const at::Tensor& query, const at::Tensor& key_cache,
                                                        const at::Tensor& value_cache, const at::Tensor& block_table,
                                                        at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens,
                                                        int64_t num_kv_heads, double scale, int64_t window_left,
                                                        double soft_cap, bool causal,
                                                        const std::optional<at::Tensor>& sinks, bool return_lse) {
  return results(check(query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, num_kv_heads, window_left,
                       soft_cap, sinks),
                 query, return_lse);
}

std::tuple<at::Tensor&, at::Tensor> paged_attention_out_meta(
    const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache, const at::Tensor& block_table,
    at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens, int64_t num_kv_heads, double scale, int64_t window_left,
    double soft_cap, bool causal, const std::optional<at::Tensor>& sinks, bool return_lse, at::Tensor& out) {
  const Sizes s = check(query, key_cache, value_cache, block_table, cu_query_lens, kv_lens, num_kv_heads, window_left,
                        soft_cap, sinks);
  check_out(s, query, out);
  return {out, std::get<1>(results(s, query, return_lse))};
}

}  // namespace

void paged_attention_into(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                          const PagedStep& step, int64_t num_kv_heads, double scale, int64_t window_left,
                          double soft_cap, at::Tensor& out) {
  paged_attention_out(query, key_cache, value_cache, step.block_table, step.cu_query_lens, step.kv_lens, num_kv_heads,
                      scale, window_left, soft_cap, true, std::nullopt, false, out);
}

}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def(
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, int[] cu_query_lens, "
      "int[] kv_lens, int num_kv_heads, float scale, int window_left=-1, float soft_cap=0., bool causal=True, Tensor? "
      "sinks=None, bool return_lse=False) -> (Tensor, Tensor)");
  m.def(
      "paged_attention.out(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, int[] "
      "cu_query_lens, int[] kv_lens, int num_kv_heads, float scale, int window_left=-1, float soft_cap=0., bool "
      "causal=True, Tensor? sinks=None, bool return_lse=False, *, Tensor(a!) out) -> (Tensor(a!), Tensor)");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("paged_attention", TORCH_FN(aloft::paged_attention));
  m.impl("paged_attention.out", TORCH_FN(aloft::paged_attention_out));
}
TORCH_LIBRARY_IMPL(aloft, Meta, m) {
  m.impl("paged_attention", TORCH_FN(aloft::paged_attention_meta));
  m.impl("paged_attention.out", TORCH_FN(aloft::paged_attention_out_meta));
}
