// aloft::decode_attention: paged attention of one query token a sequence, whose lengths and block table are read when
// the operator runs. A captured graph therefore replays it without being touched (src/aloft/runner/graphs.py).
// CANN has no such operator: its fused attention takes host lengths and is updated between replays.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <vector>

#include "acl/launch.h"
#include "kernels/attention.h"
#include "opapi/work.h"
#include "torch/device.h"
#include "torch/touches.h"

namespace aloft {
namespace {

constexpr char kName[] = "aloft::decode_attention";

struct Cache {
  int64_t d, block, token, head;
};

// A cache [blocks, block_size, heads, d], rows of d contiguous.
Cache cache_view(const char* name, const at::Tensor& cache, const at::Tensor& query, int64_t heads) {
  TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(2) == heads, kName, ": ", name, " has the shape ", cache.sizes(),
                    "; it must be [blocks, block_size, num_kv_heads ", heads, ", head_dim]");
  TORCH_CHECK_VALUE(cache.scalar_type() == query.scalar_type(), kName, ": ", name, " must have query's dtype ",
                    query.scalar_type(), ", got ", cache.scalar_type());
  TORCH_CHECK_VALUE(cache.size(3) > 0 && cache.size(3) <= 512, kName, ": head_dim must be 1 to 512, got ",
                    cache.size(3));
  TORCH_CHECK_VALUE(cache.size(3) == 1 || cache.stride(3) == 1, kName, ": the last dimension of ", name,
                    " must be contiguous");
  return {cache.size(3), cache.stride(0), cache.stride(1), cache.stride(2)};
}

void check(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
           const at::Tensor& block_table, const at::Tensor& kv_lens, int64_t num_kv_heads, int64_t window_left,
           double soft_cap, const std::optional<at::Tensor>& sinks) {
  TORCH_CHECK_VALUE(query.dim() == 3, kName, ": query must be [sequences, heads, head_dim], got ", query.sizes());
  const at::ScalarType type = query.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, kName,
                    ": query must be float32, float16 or bfloat16, got ", type);
  TORCH_CHECK_VALUE(num_kv_heads > 0 && query.size(1) % num_kv_heads == 0, kName, ": query has ", query.size(1),
                    " heads, which num_kv_heads ", num_kv_heads, " does not divide");
  TORCH_CHECK_VALUE(query.size(2) <= 1 || query.stride(2) == 1, kName,
                    ": the last dimension of query must be contiguous");
  const Cache k = cache_view("key_cache", key_cache, query, num_kv_heads);
  cache_view("value_cache", value_cache, query, num_kv_heads);
  TORCH_CHECK_VALUE(k.d == query.size(2), kName, ": query has head_dim ", query.size(2), ", key_cache ", k.d);
  TORCH_CHECK_VALUE(value_cache.size(0) == key_cache.size(0) && value_cache.size(1) == key_cache.size(1), kName,
                    ": value_cache ", value_cache.sizes(), " and key_cache ", key_cache.sizes(),
                    " differ in blocks or block size");
  TORCH_CHECK_VALUE(block_table.dim() == 2 && block_table.scalar_type() == at::kInt &&
                        block_table.size(0) == query.size(0) &&
                        (block_table.size(1) <= 1 || block_table.stride(1) == 1),
                    kName, ": block_table must be int32 [", query.size(0), ", blocks] with contiguous rows, got ",
                    block_table.scalar_type(), " ", block_table.sizes());
  TORCH_CHECK_VALUE(kv_lens.dim() == 1 && kv_lens.scalar_type() == at::kInt && kv_lens.size(0) == query.size(0) &&
                        kv_lens.is_contiguous(),
                    kName, ": kv_lens must be contiguous int32 [", query.size(0), "], got ", kv_lens.scalar_type(), " ",
                    kv_lens.sizes());
  TORCH_CHECK_VALUE(window_left >= -1, kName, ": window_left is ", window_left, "; -1 is no window, else >= 0");
  TORCH_CHECK_VALUE(soft_cap >= 0, kName, ": soft_cap is ", soft_cap, "; 0 is off, else positive");
  if (sinks && sinks->defined()) {
    TORCH_CHECK_VALUE(sinks->dim() == 1 && sinks->size(0) == query.size(1) && sinks->scalar_type() == at::kFloat &&
                          sinks->is_contiguous(),
                      kName, ": sinks must be float32 [", query.size(1), "], got ", sinks->scalar_type(), " ",
                      sinks->sizes());
  }
}

// The work of one call, everything but the lengths prepared.
class Decode {
 public:
  Decode(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& table,
         const at::Tensor& kv_lens, int64_t num_kv_heads, double scale, int64_t window_left, double soft_cap,
         const std::optional<at::Tensor>& sinks, const at::Tensor& out)
      : window_left_(window_left),
        lens_(kv_lens.const_data_ptr<int32_t>()),
        blocks_(key.size(0)),
        width_(table.size(1)) {
    AttentionProblem& p = problem_;
    const at::ScalarType type = query.scalar_type();
    p.type = type == at::kFloat ? AttentionType::F32 : (type == at::kHalf ? AttentionType::F16 : AttentionType::BF16);
    const Cache k = cache_view("key_cache", key, query, num_kv_heads);
    const Cache v = cache_view("value_cache", value, query, num_kv_heads);
    p.heads = query.size(1), p.kv_heads = num_kv_heads, p.d = k.d, p.d_v = v.d;
    p.scale = static_cast<float>(scale), p.soft_cap = static_cast<float>(soft_cap);
    p.q_token = query.stride(0), p.q_head = query.stride(1);
    p.k_block = k.block, p.k_token = k.token, p.k_head = k.head;
    p.v_block = v.block, p.v_token = v.token, p.v_head = v.head;
    p.block_size = key.size(1);
    p.out_token = out.stride(0), p.out_head = out.stride(1);
    p.sinks = sinks && sinks->defined() ? sinks->const_data_ptr<float>() : nullptr;
    p.count = query.size(0);
    sequences_.resize(static_cast<size_t>(p.count));
    const auto row = [](const at::Tensor& t, int64_t i) {
      return static_cast<char*>(t.data_ptr()) + i * t.stride(0) * static_cast<int64_t>(t.element_size());
    };
    for (int64_t b = 0; b < p.count; ++b) {
      AttentionSequence& s = sequences_[static_cast<size_t>(b)];
      s.q_len = 1;
      s.q = row(query, b), s.out = row(out, b);
      s.k = key.data_ptr(), s.v = value.data_ptr();
      s.blocks = reinterpret_cast<const int32_t*>(row(table, b));
    }
  }

  aclError operator()() {
    for (int64_t b = 0; b < problem_.count; ++b) {
      AttentionSequence& s = sequences_[static_cast<size_t>(b)];
      const int64_t length = lens_[b];
      if (length < 0 || length > width_ * problem_.block_size) {
        aloftSetError("%s: kv_lens[%lld] is %lld, a row of block_table holds %lld blocks of %lld tokens", kName,
                      static_cast<long long>(b), static_cast<long long>(length), static_cast<long long>(width_),
                      static_cast<long long>(problem_.block_size));
        return kRtInvalidParam;
      }
      s.kv_len = length;
      s.high = length - 1;
      s.low = window_left_ >= 0 ? length - 1 - window_left_ : -kAttentionFar;
      const int64_t used = (length + problem_.block_size - 1) / problem_.block_size;
      for (int64_t j = 0; j < used; ++j)
        if (s.blocks[j] < 0 || s.blocks[j] >= blocks_) {
          aloftSetError("%s: block_table[%lld][%lld] is %d, the cache has %lld blocks", kName,
                        static_cast<long long>(b), static_cast<long long>(j), s.blocks[j],
                        static_cast<long long>(blocks_));
          return kRtInvalidParam;
        }
    }
    problem_.sequences = sequences_.data();
    note_attention(problem_);
    attention_forward(problem_);
    return kOk;
  }

 private:
  AttentionProblem problem_;
  std::vector<AttentionSequence> sequences_;
  int64_t window_left_;
  const int32_t* lens_;
  int64_t blocks_, width_;
};

at::Tensor& decode_out(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                       const at::Tensor& block_table, const at::Tensor& kv_lens, int64_t num_kv_heads, double scale,
                       int64_t window_left, double soft_cap, const std::optional<at::Tensor>& sinks, at::Tensor& out) {
  check(query, key_cache, value_cache, block_table, kv_lens, num_kv_heads, window_left, soft_cap, sinks);
  TORCH_CHECK_VALUE(out.dim() == 3 && out.size(0) == query.size(0) && out.size(1) == query.size(1) &&
                        out.size(2) == value_cache.size(3) && out.scalar_type() == query.scalar_type() &&
                        (out.size(2) == 1 || out.stride(2) == 1),
                    kName, ": out must be ", query.scalar_type(), " [", query.size(0), ", ", query.size(1), ", ",
                    value_cache.size(3), "] with contiguous rows, got ", out.scalar_type(), " ", out.sizes());
  if (out.numel() == 0) return out;
  const c10::OptionalDeviceGuard guard(out.device());
  const aclError error =
      launch(torch_route::current_stream(out.device().index()), kName,
             Decode(query, key_cache, value_cache, block_table, kv_lens, num_kv_heads, scale, window_left, soft_cap,
                    sinks, out),
             [&] {
               return torch_route::touches(
                   {query, key_cache, value_cache, block_table, kv_lens, torch_route::or_none(sinks)}, {out});
             });
  if (error != kOk) torch_route::raise(error, kName);
  return out;
}

at::Tensor decode(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                  const at::Tensor& block_table, const at::Tensor& kv_lens, int64_t num_kv_heads, double scale,
                  int64_t window_left, double soft_cap, const std::optional<at::Tensor>& sinks) {
  check(query, key_cache, value_cache, block_table, kv_lens, num_kv_heads, window_left, soft_cap, sinks);
  at::Tensor out = at::empty({query.size(0), query.size(1), value_cache.size(3)}, query.options());
  return decode_out(query, key_cache, value_cache, block_table, kv_lens, num_kv_heads, scale, window_left, soft_cap,
                    sinks, out);
}

at::Tensor decode_meta(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                       const at::Tensor& block_table, const at::Tensor& kv_lens, int64_t num_kv_heads, double scale,
                       int64_t window_left, double soft_cap, const std::optional<at::Tensor>& sinks) {
  check(query, key_cache, value_cache, block_table, kv_lens, num_kv_heads, window_left, soft_cap, sinks);
  return at::empty({query.size(0), query.size(1), value_cache.size(3)}, query.options());
}

at::Tensor& decode_out_meta(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                            const at::Tensor& block_table, const at::Tensor& kv_lens, int64_t num_kv_heads,
                            double scale, int64_t window_left, double soft_cap, const std::optional<at::Tensor>& sinks,
                            at::Tensor& out) {
  check(query, key_cache, value_cache, block_table, kv_lens, num_kv_heads, window_left, soft_cap, sinks);
  return out;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def(
      "decode_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor kv_lens, int "
      "num_kv_heads, float scale, int window_left=-1, float soft_cap=0., Tensor? sinks=None) -> Tensor");
  m.def(
      "decode_attention.out(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor kv_lens, "
      "int num_kv_heads, float scale, int window_left=-1, float soft_cap=0., Tensor? sinks=None, *, Tensor(a!) out) -> "
      "Tensor(a!)");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("decode_attention", TORCH_FN(aloft::decode));
  m.impl("decode_attention.out", TORCH_FN(aloft::decode_out));
}
TORCH_LIBRARY_IMPL(aloft, Meta, m) {
  m.impl("decode_attention", TORCH_FN(aloft::decode_meta));
  m.impl("decode_attention.out", TORCH_FN(aloft::decode_out_meta));
}
