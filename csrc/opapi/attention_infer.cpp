#include "opapi/attention_infer.h"

#include <algorithm>
#include <cstring>

#include "opapi/attention_kv_quant.h"
#include "opapi/work.h"

namespace aloft {
namespace {

using Text = std::string;

constexpr char kLayouts[] =
    "BSH, BSND, BNSD, TND, NTD, NSD, BNSD_BSND, BSH_BNSD, BSND_BNSD, BSH_NBSD, BSND_NBSD, BNSD_NBSD, NTD_TND, TND_NTD";

bool known_layout(const Text& layout) {
  for (const char* p = kLayouts; *p;) {
    const char* end = std::strchr(p, ',');
    const size_t n = end ? static_cast<size_t>(end - p) : std::strlen(p);
    if (layout.size() == n && layout.compare(0, n, p, n) == 0) return true;
    p += n;
    while (*p == ',' || *p == ' ') ++p;
  }
  return false;
}

// Strides of a paged cache; d is filled in.
struct Cache {
  int64_t blocks = 0, block = 0, token = 0, head = 0, chunk = 16, d = 0;
};

// The three forms of a paged cache: [nb, bs, Hkv*D], [nb, Hkv, bs, D], [nb, Hkv, D/16, bs, 16].
Cache cache_view(const char* name, const Tensor& t, int64_t kv_heads, int64_t block_size, const Text& layout) {
  Cache c;
  const Text shape = t.shape_text();
  c.blocks = t.ndim > 0 ? t.size(0) : 0;
  c.block = t.ndim > 0 ? t.stride(0) : 0;
  if (t.ndim == 3) {
    require(t.size(1) == block_size && t.size(2) % kv_heads == 0,
            "%s has the shape %s: a paged cache is [blocks, block_size %lld, %lld heads * head size]", name,
            shape.c_str(), ll(block_size), ll(kv_heads));
    c.d = t.size(2) / kv_heads, c.token = t.stride(1), c.head = c.d;
    limit(t.size(2) <= 65535, "%s: heads * head size is %lld, at most 65535", name, ll(t.size(2)));
  } else if (t.ndim == 4) {
    require(
        t.size(1) == kv_heads && t.size(2) == block_size,
        "%s has the shape %s: a 4-D cache is [blocks, %lld heads, block_size %lld, head size], heads before tokens; "
        "view [blocks, block_size, heads, head size] as 3-D [blocks, block_size, heads * head size]",
        name, shape.c_str(), ll(kv_heads), ll(block_size));
    limit(layout == "BNSD" || attention_packed(layout), "%s: a 4-D cache goes with BNSD and TND queries, not with %s",
          name, layout.c_str());
    c.d = t.size(3), c.head = t.stride(1), c.token = t.stride(2);
  } else if (t.ndim == 5) {
    require(t.size(1) == kv_heads && t.size(3) == block_size && t.size(4) == 16,
            "%s has the shape %s: a 5-D cache is [blocks, %lld heads, head size / 16, block_size %lld, 16]", name,
            shape.c_str(), ll(kv_heads), ll(block_size));
    c.d = t.size(2) * 16, c.head = t.stride(1), c.chunk = t.stride(2), c.token = t.stride(3);
  } else {
    fail(kParamInvalid, "%s has the shape %s: a paged cache has 3, 4 or 5 dimensions", name, shape.c_str());
  }
  return c;
}

struct Plan {
  Text q_layout, out_layout, kv_layout;
  int64_t heads, kv_heads, batch = 0, d = 0, d_rope = 0, d_v = 0;
  bool packed, paged, decode;
  float scale;
  AttentionSparse sparse;
  Tensor q, k, v, q_rope, k_rope, table, mask, pse, sink, out, lse;
  int64_t block_size;
  std::vector<int64_t> q_begin, q_len, kv_begin, kv_len;
  int64_t mask_batch = 0, pse_batch = 0;
  KvQuant k_quant, v_quant;
  KvShape k_shape, v_shape;
};

void check_types(const Plan& p) {
  const DType t = p.q.dtype;
  require(t != DType::I8 && p.k.dtype != DType::I32,
          "an int8 query and int4 keys and values are not available on the virtual NPU yet");
  require(t == DType::F16 || t == DType::BF16 || t == DType::F32, "query must be float16 or bfloat16, got %s",
          dtype_name(t));
  limit(t != DType::F32, "query is float32, the operator takes float16 and bfloat16");
  const bool quantised = p.k.dtype == DType::I8 && p.v.dtype == DType::I8;
  require(quantised || (p.k.dtype == t && p.v.dtype == t),
          "key and value must have the dtype of query (%s), or both be int8; got %s and %s", dtype_name(t),
          dtype_name(p.k.dtype), dtype_name(p.v.dtype));
  require(!quantised || (p.k_quant && p.v_quant),
          "int8 key and value need key_antiquant_scale and value_antiquant_scale (or antiquant_scale for both)");
  require(quantised || (!p.k_quant && !p.v_quant), "antiquant scales go with int8 key and value, got %s",
          dtype_name(p.k.dtype));
  require(!quantised || (!p.q_rope && p.k.ndim != 5),
          "int8 key and value go without rope parts and without a cache in 32-element pieces on the virtual NPU");
  require(p.out.dtype == t, "attention_out must have the dtype of query (%s), got %s", dtype_name(t),
          dtype_name(p.out.dtype));
  require(!p.q_rope == !p.k_rope, "query_rope and key_rope are given together or not at all");
  if (p.q_rope) require(p.q_rope.dtype == t && p.k_rope.dtype == t, "query_rope and key_rope must have query's dtype");
}

// Query lengths, and where each sequence's rows begin in a packed query.
void plan_queries(Plan* p, const AttentionView& q, const std::vector<int64_t>& lengths) {
  if (p->packed) {
    require(!lengths.empty() || q.tokens == 0,
            "actual_seq_lengths is required with the packed layout %s: cumulative, the last one the number of tokens",
            p->q_layout.c_str());
    p->batch = static_cast<int64_t>(lengths.size());
    limit(p->batch <= 4096, "%lld sequences, a packed layout takes at most 4096", ll(p->batch));
    int64_t before = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      require(lengths[i] >= before, "actual_seq_lengths must not decrease: entry %zu is %lld after %lld", i,
              ll(lengths[i]), ll(before));
      p->q_begin.push_back(before);
      p->q_len.push_back(lengths[i] - before);
      before = lengths[i];
    }
    require(before == q.tokens, "the last of actual_seq_lengths is %lld, query has %lld tokens", ll(before),
            ll(q.tokens));
    return;
  }
  p->batch = q.batch;
  limit(p->batch <= 65536, "%lld sequences, at most 65536", ll(p->batch));
  require(lengths.empty() || lengths.size() == 1 || static_cast<int64_t>(lengths.size()) >= p->batch,
          "actual_seq_lengths has %zu entries for a batch of %lld: none, one or one a sequence", lengths.size(),
          ll(p->batch));
  for (int64_t b = 0; b < p->batch; ++b) {
    const int64_t n = lengths.empty() ? q.tokens : lengths[lengths.size() == 1 ? 0 : static_cast<size_t>(b)];
    require(n >= 0 && n <= q.tokens, "actual_seq_lengths[%lld] is %lld, query has %lld tokens a sequence", ll(b), ll(n),
            ll(q.tokens));
    p->q_begin.push_back(0);
    p->q_len.push_back(n);
  }
}

void plan_keys(Plan* p, int64_t dense_tokens, const std::vector<int64_t>& lengths) {
  const auto count = static_cast<int64_t>(lengths.size());
  if (p->packed) {
    require(count == p->batch, "actual_seq_lengths_kv has %lld entries, actual_seq_lengths has %lld", ll(count),
            ll(p->batch));
  } else {
    require(!p->paged || count > 0, "actual_seq_lengths_kv is required with a block_table");
    require(count == 0 || count == 1 || count >= p->batch,
            "actual_seq_lengths_kv has %lld entries for a batch of %lld: none, one or one a sequence", ll(count),
            ll(p->batch));
  }
  int64_t before = 0;
  for (int64_t b = 0; b < p->batch; ++b) {
    const int64_t given = count == 0 ? dense_tokens : lengths[static_cast<size_t>(count == 1 ? 0 : b)];
    int64_t n = given;
    if (p->packed && !p->paged) {
      require(given >= before, "actual_seq_lengths_kv must not decrease: entry %lld is %lld after %lld", ll(b),
              ll(given), ll(before));
      n = given - before;
      p->kv_begin.push_back(before);
      before = given;
    } else {
      p->kv_begin.push_back(0);
    }
    require(n >= 0, "actual_seq_lengths_kv[%lld] is negative: %lld", ll(b), ll(n));
    if (p->paged) {
      const int64_t blocks = (n + p->block_size - 1) / p->block_size;
      require(blocks <= p->table.size(1),
              "block_table has %lld blocks a sequence, actual_seq_lengths_kv[%lld] = %lld needs %lld of %lld tokens",
              ll(p->table.size(1)), ll(b), ll(n), ll(blocks), ll(p->block_size));
    } else if (!p->packed) {
      require(n <= dense_tokens, "actual_seq_lengths_kv[%lld] is %lld, key has %lld tokens a sequence", ll(b), ll(n),
              ll(dense_tokens));
    }
    p->kv_len.push_back(n);
    if (p->sparse.mode == 3 || p->sparse.mode == 4) {
      const int64_t queries = p->q_len[static_cast<size_t>(b)];
      limit(n >= queries || n == 0,
            "sequence %lld has %lld keys for %lld queries: under sparse_mode 3 and 4 its first rows would see nothing",
            ll(b), ll(n), ll(queries));
    }
  }
  if (p->packed && !p->paged)
    require(before == dense_tokens, "the last of actual_seq_lengths_kv is %lld, key has %lld tokens", ll(before),
            ll(dense_tokens));
}

void plan_mask(Plan* p, const Tensor& mask, int64_t queries) {
  const int64_t mode = p->sparse.mode;
  require(mode >= 0 && mode <= 4, "sparse_mode is %lld; the virtual NPU has 0, 1, 2, 3 and 4", ll(mode));
  require(mask || (mode != 1 && mode < 2), "sparse_mode %lld needs atten_mask", ll(mode));
  if (!mask) return;
  require(attention_mask_dtype(mask.dtype), "atten_mask must be bool, int8 or uint8 (1 hides), got %s",
          dtype_name(mask.dtype));
  const Text shape = mask.shape_text();
  const int n = mask.ndim;
  bool leading_ones = true;
  for (int i = 0; i + 2 < n; ++i) leading_ones = leading_ones && mask.size(i) == 1;
  if (mode >= 2) {
    require(n >= 2 && n <= 4 && leading_ones && mask.size(-1) == 2048 && mask.size(-2) == 2048,
            "atten_mask has the shape %s; sparse_mode %lld takes the compressed [2048, 2048], [1, 2048, 2048] or "
            "[1, 1, 2048, 2048]",
            shape.c_str(), ll(mode));
    if (contract() == Contract::Strict) p->mask = mask;
    return;
  }
  int64_t longest = 0;
  for (const int64_t keys : p->kv_len) longest = std::max(longest, keys);
  const bool one_row = !p->packed && queries == 1;
  bool ok = n >= 2 && n <= 4 && mask.size(-1) >= longest;
  if (ok && n == 2 && one_row && mask.size(0) == p->batch) {
    p->mask_batch = mask.stride(0);
  } else {
    ok = ok && mask.size(-2) >= queries && (n < 4 || mask.size(1) == 1) && (n < 3 || mask.size(n - 2) > 0);
    if (ok && n == 3) ok = mask.size(0) == 1;
    if (ok && n == 4) ok = mask.size(0) == 1 || mask.size(0) == p->batch;
    if (ok && n == 4 && mask.size(0) > 1) p->mask_batch = mask.stride(0);
  }
  require(
      ok,
      "atten_mask has the shape %s; sparse_mode %lld takes [Q, K], [1, Q, K], [1, 1, Q, K] or [B, 1, Q, K]%s with Q "
      ">= %lld, K >= %lld, B = %lld",
      shape.c_str(), ll(mode), one_row ? ", or [B, K]" : "", ll(queries), ll(longest), ll(p->batch));
  limit(!p->packed, "the packed layout %s takes no full mask: sparse_mode 0 without a mask, 3 or 4",
        p->q_layout.c_str());
  p->mask = mask;
}

void plan_pse(Plan* p, const Tensor& pse, int64_t queries) {
  if (!pse) return;
  limit(!p->packed && !p->q_rope, "pse_shift does not go with a packed layout or with rope parts");
  require(pse.dtype == p->q.dtype || pse.dtype == DType::F32, "pse_shift must have query's dtype (%s), got %s",
          dtype_name(p->q.dtype), dtype_name(pse.dtype));
  int64_t longest = 0;
  for (const int64_t keys : p->kv_len) longest = std::max(longest, keys);
  const bool ok = pse.ndim == 4 && (pse.size(0) == 1 || pse.size(0) == p->batch) && pse.size(1) == p->heads &&
                  pse.size(2) >= queries && pse.size(3) >= longest;
  ALOFT_REQUIRE(ok, "pse_shift has the shape %s, it must be [1 or %lld, %lld, >= %lld, >= %lld]",
                pse.shape_text().c_str(), ll(p->batch), ll(p->heads), ll(queries), ll(longest));
  p->pse = pse;
  p->pse_batch = pse.size(0) > 1 ? pse.stride(0) : 0;
}

void check_sizes(const Plan& p, int64_t queries) {
  limit(p.heads <= 256, "%lld query heads, at most 256", ll(p.heads));
  limit(p.heads / p.kv_heads <= 64, "%lld query heads on %lld key heads, at most 64 share one", ll(p.heads),
        ll(p.kv_heads));
  limit(p.d <= 512 && p.d % 16 == 0 && p.d_v <= 512 && p.d_v % 16 == 0,
        "head sizes are %lld and %lld (value); the operator takes multiples of 16 up to 512", ll(p.d), ll(p.d_v));
  const bool absorbed = p.d == 512 && p.q_rope;
  if (p.packed && !absorbed) {
    const bool plain = p.d == p.d_v && (p.d == 64 || p.d == 128);
    const bool wide = p.d == 192 && (p.d_v == 128 || (p.d_v == 192 && p.heads == p.kv_heads));
    const bool rope = p.d == 128 && p.d_v == 128 && p.d_rope == 64;
    limit(p.q_rope ? rope : plain || wide,
          "head sizes are %lld (query, key), %lld (rope), %lld (value); a packed layout takes 64, 128, 192 with value "
          "128 or 192, or 128 with rope 64",
          ll(p.d), ll(p.d_rope), ll(p.d_v));
  }
  if (absorbed) {
    limit(
        p.kv_heads == 1 && p.d_rope == 64 && (p.heads & (p.heads - 1)) == 0 && p.heads <= 128,
        "head size 512 with rope takes one key head, rope size 64 and 1, 2, 4 .. 128 query heads; got %lld, %lld, %lld",
        ll(p.kv_heads), ll(p.d_rope), ll(p.heads));
    limit(p.packed || queries <= 16, "head size 512 with rope takes up to 16 query tokens, got %lld", ll(queries));
  }
  if (p.paged) {
    limit(p.block_size % 16 == 0 && p.block_size <= (p.packed ? 1024 : 512),
          "block_size is %lld; multiples of 16 up to %d", ll(p.block_size), p.packed ? 1024 : 512);
  }
  if (p.sink) {
    require(p.sink.ndim == 1 && p.sink.size(0) == p.heads && p.sink.dtype != DType::I8,
            "learnable_sink must be [%lld], one value a query head", ll(p.heads));
    require(p.sink.dtype == DType::BF16 || p.sink.dtype == DType::F32 || p.sink.dtype == DType::F16,
            "learnable_sink must be bfloat16, got %s", dtype_name(p.sink.dtype));
    limit(p.sink.dtype == DType::BF16 && p.packed && (p.d == 64 || p.d == 128),
          "learnable_sink is bfloat16 and goes with TND and NTD_TND and head size 64 or 128");
  }
}

// Rows of a padded query that belong to no token: hardware leaves them undefined.
void fill_padding(const Plan& p, Tensor out, const AttentionView& view, Tensor lse) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t n = p.q_len[static_cast<size_t>(b)];
    if (p.packed || n == view.tokens) continue;
    const auto rows = [&](Tensor t, int64_t batch_stride, int64_t token_stride, int64_t head_stride, int64_t d) {
      t.ndim = 3;
      const int64_t sizes[] = {view.tokens - n, p.heads, d}, strides[] = {token_stride, head_stride, 1};
      std::copy(sizes, sizes + 3, t.sizes);
      std::copy(strides, strides + 3, t.strides);
      t.data = t.ptr<char>() + (b * batch_stride + n * token_stride) * static_cast<int64_t>(dtype_size(t.dtype));
      if (contract() == Contract::Strict) return poison(t);
      for (int64_t i = 0; i < sizes[0]; ++i)
        for (int64_t h = 0; h < sizes[1]; ++h)
          std::memset(t.ptr<char>() + (i * strides[0] + h * strides[1]) * static_cast<int64_t>(dtype_size(t.dtype)), 0,
                      static_cast<size_t>(d) * dtype_size(t.dtype));
    };
    rows(out, view.batch_stride, view.token_stride, view.head_stride, view.d);
    if (lse) rows(lse, lse.stride(0), lse.stride(2), lse.stride(1), 1);
  }
}

void run_infer(const Plan& plan) {
  AttentionOperand q(plan.q), k(plan.k), v(plan.v), q_rope(plan.q_rope), k_rope(plan.k_rope), mask(plan.mask),
      pse(plan.pse), out(plan.out, Dense::Write);
  const AttentionView qv = attention_view("query", q.tensor(), plan.q_layout, plan.heads);
  const AttentionView ov = attention_view("attention_out", out.tensor(), plan.out_layout, plan.heads);
  const std::vector<float> sinks = attention_sinks(plan.sink);
  if (plan.mask && plan.sparse.mode >= 2) check_compressed_mask(plan.mask);
  AttentionProblem p;
  p.type = attention_type(plan.q);
  p.heads = plan.heads, p.kv_heads = plan.kv_heads;
  p.d = plan.d, p.d_rope = plan.d_rope, p.d_v = plan.d_v;
  p.scale = plan.scale;
  p.sinks = sinks.empty() ? nullptr : sinks.data();
  p.empty_lse = plan.decode ? -3.402823466e38f : __builtin_inff();
  p.q_token = qv.token_stride, p.q_head = qv.head_stride;
  p.out_token = ov.token_stride, p.out_head = ov.head_stride;
  p.block_size = plan.block_size;
  AttentionView rv, kv, vv, krv;
  if (q_rope) {
    rv = attention_view("query_rope", q_rope.tensor(), plan.q_layout, plan.heads);
    p.q_rope_token = rv.token_stride, p.q_rope_head = rv.head_stride;
  }
  int64_t blocks = 0;
  if (plan.paged) {
    const Cache kc = cache_view("key", k.tensor(), plan.kv_heads, plan.block_size, plan.q_layout);
    const Cache vc = cache_view("value", v.tensor(), plan.kv_heads, plan.block_size, plan.q_layout);
    p.k_token = kc.token, p.k_head = kc.head, p.k_block = kc.block, p.k_chunk = kc.chunk;
    p.v_token = vc.token, p.v_head = vc.head, p.v_block = vc.block, p.v_chunk = vc.chunk;
    blocks = std::min(kc.blocks, vc.blocks);
    if (k_rope) {
      const Cache rc = cache_view("key_rope", k_rope.tensor(), plan.kv_heads, plan.block_size, plan.q_layout);
      p.k_rope_token = rc.token, p.k_rope_head = rc.head, p.k_rope_block = rc.block, p.k_rope_chunk = rc.chunk;
      blocks = std::min(blocks, rc.blocks);
    }
  } else {
    kv = attention_view("key", k.tensor(), plan.q_layout, plan.kv_heads);
    vv = attention_view("value", v.tensor(), plan.q_layout, plan.kv_heads);
    p.k_token = kv.token_stride, p.k_head = kv.head_stride;
    p.v_token = vv.token_stride, p.v_head = vv.head_stride;
    if (k_rope) {
      krv = attention_view("key_rope", k_rope.tensor(), plan.q_layout, plan.kv_heads);
      p.k_rope_token = krv.token_stride, p.k_rope_head = krv.head_stride;
    }
  }
  if (plan.lse) {
    p.lse_token = plan.lse.stride(plan.packed ? 0 : 2);
    p.lse_head = plan.lse.stride(1);
  }
  const bool full_mask = mask && plan.sparse.mode < 2;
  if (full_mask) p.mask_token = mask.tensor().stride(-2);
  if (pse) {
    p.pse_type = attention_type(plan.pse);
    p.pse_head = pse.tensor().stride(1), p.pse_token = pse.tensor().stride(2);
  }
  const bool one_row_mask = full_mask && plan.mask.ndim == 2 && plan.mask_batch != 0;
  std::vector<AttentionSequence> sequences(static_cast<size_t>(plan.batch));
  std::vector<std::vector<int32_t>> tables;
  for (int64_t b = 0; b < plan.batch; ++b) {
    AttentionSequence& s = sequences[static_cast<size_t>(b)];
    s.q_len = plan.q_len[static_cast<size_t>(b)];
    s.kv_len = plan.kv_len[static_cast<size_t>(b)];
    const int64_t first = plan.q_begin[static_cast<size_t>(b)], first_key = plan.kv_begin[static_cast<size_t>(b)];
    s.q = q.at(b * qv.batch_stride + first * qv.token_stride);
    s.out = out.at(b * ov.batch_stride + first * ov.token_stride);
    if (q_rope) s.q_rope = q_rope.at(b * rv.batch_stride + first * rv.token_stride);
    if (plan.paged) {
      s.k = k.at(0), s.v = v.at(0);
      if (k_rope) s.k_rope = k_rope.at(0);
      const int32_t* row = plan.table.ptr<int32_t>() + b * plan.table.stride(0);
      const int64_t used = (s.kv_len + plan.block_size - 1) / plan.block_size, step = plan.table.stride(1);
      for (int64_t j = 0; j < used; ++j)
        require(row[j * step] >= 0 && row[j * step] < blocks,
                "block_table[%lld][%lld] is %d, the cache has %lld blocks", ll(b), ll(j), row[j * step], ll(blocks));
      if (step != 1) {
        tables.emplace_back();
        for (int64_t j = 0; j < used; ++j) tables.back().push_back(row[j * step]);
        row = tables.back().data();
      }
      s.blocks = row;
    } else {
      s.k = k.at(b * kv.batch_stride + first_key * kv.token_stride);
      s.v = v.at(b * vv.batch_stride + first_key * vv.token_stride);
      if (k_rope) s.k_rope = k_rope.at(b * krv.batch_stride + first_key * krv.token_stride);
    }
    if (plan.lse) s.lse = plan.lse.ptr<float>() + (plan.packed ? first * plan.lse.stride(0) : b * plan.lse.stride(0));
    if (full_mask) s.mask = reinterpret_cast<const uint8_t*>(mask.at(b * plan.mask_batch));
    if (one_row_mask) p.mask_token = 0;
    if (pse) s.pse = pse.at(b * plan.pse_batch);
    plan.sparse.apply(&s);
  }
  std::vector<float> wide, k_scale, k_offset, v_scale, v_offset;
  if (plan.k_quant && (plan.k_quant.by_token() || plan.v_quant.by_token())) {
    widen_kv(plan.k_quant, plan.v_quant, plan.k_shape, plan.v_shape, &p, &sequences, &wide);
  } else if (plan.k_quant) {
    k_scale = kv_channels(plan.k_quant.scale, plan.k_shape), k_offset = kv_channels(plan.k_quant.offset, plan.k_shape);
    v_scale = kv_channels(plan.v_quant.scale, plan.v_shape), v_offset = kv_channels(plan.v_quant.offset, plan.v_shape);
    p.kv = AttentionKv::Int8;
    p.k_scale = k_scale.data(), p.k_offset = k_offset.empty() ? nullptr : k_offset.data();
    p.v_scale = v_scale.data(), p.v_offset = v_offset.empty() ? nullptr : v_offset.data();
  }
  p.sequences = sequences.data();
  p.count = plan.batch;
  note_attention(p);
  attention_forward(p);
  fill_padding(plan, out.tensor(), ov, plan.lse);
  out.commit();
}

// The key's (0) or the value's (1) half of an operand that stacks both.
Tensor half_of(const char* name, const Tensor& both, int64_t which) {
  if (!both) return both;
  require(both.ndim >= 1 && both.size(0) == 2, "%s has the shape %s, its first dimension must be 2: key and value",
          name, both.shape_text().c_str());
  Tensor t = both;
  --t.ndim;
  std::copy(both.sizes + 1, both.sizes + both.ndim, t.sizes);
  std::copy(both.strides + 1, both.strides + both.ndim, t.strides);
  t.data = both.ptr<char>() + which * both.stride(0) * static_cast<int64_t>(dtype_size(both.dtype));
  return t;
}

void plan_kv_quant(Plan* p, const InferAttention& a) {
  const Tensor scale = optional("antiquant_scale", a.kv_scale), offset = optional("antiquant_offset", a.kv_offset);
  if (scale) {
    require(!a.key_scale && !a.value_scale, "antiquant_scale is given together with key_antiquant_scale");
    p->k_quant = {half_of("antiquant_scale", scale, 0), half_of("antiquant_offset", offset, 0), a.kv_mode};
    p->v_quant = {half_of("antiquant_scale", scale, 1), half_of("antiquant_offset", offset, 1), a.kv_mode};
    return;
  }
  p->k_quant = {optional("key_antiquant_scale", a.key_scale), optional("key_antiquant_offset", a.key_offset),
                a.key_mode};
  p->v_quant = {optional("value_antiquant_scale", a.value_scale), optional("value_antiquant_offset", a.value_offset),
                a.value_mode};
}

}  // namespace

void refuse_operand(const aclTensor* t, const char* name, const char* what) {
  if (t) fail(kParamInvalid, "%s is given: %s is not available on the virtual NPU yet", name, what);
}

const aclTensor* only_tensor(const char* name, const aclTensorList* list) {
  if (!list || list->items.empty()) fail(kParamNull, "%s is missing", name);
  require(list->items.size() == 1, "%s is a list of %zu tensors, the virtual NPU takes one", name, list->items.size());
  return list->items[0];
}

Work plan_infer_attention(const InferAttention& a) {
  auto plan = std::make_shared<Plan>();
  Plan& p = *plan;
  p.q = in("query", a.query), p.k = in("key", a.key), p.v = in("value", a.value);
  p.out = out("attention_out", a.out);
  p.q_rope = optional("query_rope", a.query_rope), p.k_rope = optional("key_rope", a.key_rope);
  p.table = optional("block_table", a.block_table), p.sink = optional("learnable_sink", a.sink);
  if (p.sink && p.sink.numel() == 0) p.sink = Tensor();
  const Text layout = a.layout ? a.layout : "";
  require(known_layout(layout), "input_layout is \"%s\"; valid: %s", layout.c_str(), kLayouts);
  p.q_layout = layout.substr(0, layout.find('_'));
  p.out_layout = layout.find('_') == Text::npos ? layout : layout.substr(layout.find('_') + 1);
  p.packed = attention_packed(p.q_layout);
  p.paged = p.table.present;
  plan_kv_quant(&p, a);
  check_types(p);
  require(a.heads > 0, "num_heads is %lld, it must be positive", ll(a.heads));
  p.heads = a.heads;
  p.kv_heads = a.kv_heads ? a.kv_heads : a.heads;
  require(p.kv_heads > 0 && p.heads % p.kv_heads == 0, "num_heads %lld is no multiple of num_key_value_heads %lld",
          ll(p.heads), ll(p.kv_heads));
  p.scale = static_cast<float>(a.scale);
  p.block_size = a.block_size;
  p.sparse = {a.sparse_mode, a.pre, a.next, false};

  const AttentionView q = attention_view("query", p.q, p.q_layout, p.heads);
  require(q.heads == p.heads, "query has %lld heads in the layout %s, num_heads is %lld", ll(q.heads),
          p.q_layout.c_str(), ll(p.heads));
  p.d = q.d;
  int64_t dense_tokens = 0, key_d, key_rope_d = 0;
  if (p.paged) {
    require(p.table.dtype == DType::I32 && p.table.ndim == 2, "block_table must be int32 [sequences, blocks]");
    require(p.block_size > 0, "block_size is %lld, it must be the number of tokens of a cache block", ll(p.block_size));
    key_d = cache_view("key", p.k, p.kv_heads, p.block_size, p.q_layout).d;
    p.d_v = cache_view("value", p.v, p.kv_heads, p.block_size, p.q_layout).d;
    if (p.k_rope) key_rope_d = cache_view("key_rope", p.k_rope, p.kv_heads, p.block_size, p.q_layout).d;
  } else {
    const AttentionView k = attention_view("key", p.k, p.q_layout, p.kv_heads);
    const AttentionView v = attention_view("value", p.v, p.q_layout, p.kv_heads);
    require(k.heads == p.kv_heads && v.heads == p.kv_heads, "key and value have %lld and %lld heads, expected %lld",
            ll(k.heads), ll(v.heads), ll(p.kv_heads));
    require(k.tokens == v.tokens && k.batch == q.batch && v.batch == q.batch,
            "query, key and value disagree: batches %lld, %lld, %lld; key has %lld tokens, value %lld", ll(q.batch),
            ll(k.batch), ll(v.batch), ll(k.tokens), ll(v.tokens));
    dense_tokens = k.tokens, key_d = k.d, p.d_v = v.d;
    if (p.k_rope) {
      const AttentionView r = attention_view("key_rope", p.k_rope, p.q_layout, p.kv_heads);
      require(r.tokens == k.tokens && r.batch == k.batch && r.heads == p.kv_heads,
              "key_rope does not have key's batches, tokens and heads");
      key_rope_d = r.d;
    }
  }
  require(key_d == p.d, "query has the head size %lld, key %lld", ll(p.d), ll(key_d));
  if (p.q_rope) {
    const AttentionView r = attention_view("query_rope", p.q_rope, p.q_layout, p.heads);
    require(r.tokens == q.tokens && r.batch == q.batch && r.heads == p.heads && r.d == key_rope_d,
            "query_rope does not match query and key_rope: head size %lld and %lld", ll(r.d), ll(key_rope_d));
    p.d_rope = r.d;
  }
  plan_queries(&p, q, attention_lengths(a.q_lengths));
  if (p.paged)
    require(p.table.size(0) == p.batch, "block_table has %lld rows for %lld sequences", ll(p.table.size(0)),
            ll(p.batch));
  const bool five = p.paged && p.k.ndim == 5;
  int64_t queries = q.tokens;
  if (p.packed) {
    queries = 0;
    for (const int64_t n : p.q_len) queries = std::max(queries, n);
  }
  p.decode = p.packed ? p.d == 512
                      : q.tokens == 1 || (q.tokens <= 16 && five) ||
                            (p.d == 512 && p.q_rope && (q.tokens <= 16 || a.sparse_mode == 4));
  if (p.d == 512 && p.q_rope && !p.packed)
    limit(!a.q_lengths || a.q_lengths->values.empty(), "actual_seq_lengths does not go with head size 512 and %s",
          p.q_layout.c_str());
  Tensor mask = optional("atten_mask", a.atten_mask);
  if (mask && mask.numel() == 0 && a.sparse_mode == 0) mask = Tensor();
  if (!p.packed && q.tokens == 1 && !p.q_rope) {  // this branch of the hardware knows no sparse modes
    const bool compressed = mask && mask.ndim >= 2 && mask.size(-1) == 2048 && mask.size(-2) == 2048;
    if (a.sparse_mode >= 2 && a.sparse_mode <= 4 && (!mask || compressed)) mask = Tensor();
    p.sparse.mode = mask ? 1 : 0;
  }
  plan_keys(&p, dense_tokens, attention_lengths(a.kv_lengths));
  plan_mask(&p, mask, queries);
  p.sparse.bounded = p.sparse.mode == 0 && mask;
  if (p.sparse.mode == 4)
    require(a.pre + a.next >= 0, "pre_tokens %lld and next_tokens %lld leave an empty band", ll(a.pre), ll(a.next));
  plan_pse(&p, optional("pse_shift", a.pse_shift), queries);
  check_sizes(p, queries);
  if (p.k_quant) {
    int64_t longest = 0;
    for (const int64_t keys : p.kv_len) longest = std::max(longest, keys);
    const int64_t blocks = p.paged ? p.k.size(0) : 0;
    p.k_shape = {p.batch, p.kv_heads, p.d, longest, blocks, p.block_size};
    p.v_shape = {p.batch, p.kv_heads, p.d_v, longest, blocks, p.block_size};
    check_kv_quant("key", p.k_quant, p.k_shape, p.q.dtype);
    check_kv_quant("value", p.v_quant, p.v_shape, p.q.dtype);
    limit(queries <= 1 || p.packed || (p.k_quant.mode <= 1 && p.v_quant.mode <= 1 && queries <= 16 && !p.paged),
          "%lld query tokens with int8 keys and values: up to 16, antiquant modes 0 and 1, no paging", ll(queries));
  }

  const AttentionView o = attention_view("attention_out", p.out, p.out_layout, p.heads);
  require(o.batch == q.batch && o.tokens == q.tokens && o.heads == p.heads && o.d == p.d_v,
          "attention_out has the shape %s, which is not query's in the layout %s with head size %lld",
          p.out.shape_text().c_str(), p.out_layout.c_str(), ll(p.d_v));
  if (a.want_lse) {
    p.lse = out("softmax_lse", a.lse);
    const bool ok = p.lse.dtype == DType::F32 &&
                    (p.packed ? p.lse.ndim == 3 && p.lse.size(0) == q.tokens && p.lse.size(1) == p.heads
                              : p.lse.ndim == 4 && p.lse.size(0) == q.batch && p.lse.size(1) == p.heads &&
                                    p.lse.size(2) == q.tokens);
    require(ok, "softmax_lse must be float32 [%s, 1], got %s", p.packed ? "T, N" : "B, N, S",
            p.lse.shape_text().c_str());
  }
  if (p.out.numel() == 0) return nullptr;
  return [plan] { run_infer(*plan); };
}

}  // namespace aloft
