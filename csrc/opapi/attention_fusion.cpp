#include "opapi/attention_fusion.h"

#include <algorithm>
#include <cstring>

#include "opapi/work.h"

namespace aloft {
namespace {

using Text = std::string;
long long ll(int64_t v) { return static_cast<long long>(v); }

struct Plan {
  Text layout;
  bool packed, same_as_input;
  int64_t heads, kv_heads, batch = 0, d = 0, d_rope = 0, d_v = 0, pse_type;
  float scale, keep_prob;
  AttentionSparse sparse;
  std::vector<int64_t> q_begin, q_len, kv_begin, kv_len, prefix;
  Tensor q, k, v, q_rope, k_rope, pse, drop, mask, sink, max, sum, out;
  Tensor dy, dq, dk, dv, dq_rope, dk_rope, dpse, dsink;
};

bool present(const Tensor& t) { return t.present && t.numel() > 0; }

// An optional operand; adapters hand over tensors of no element for "none".
Tensor given(const char* name, const aclTensor* t) {
  const Tensor view = optional(name, t);
  return present(view) ? view : Tensor();
}

void plan_packed(Plan* p, int64_t q_tokens, int64_t kv_tokens, const std::vector<int64_t>& q,
                 const std::vector<int64_t>& kv) {
  require(!q.empty() && q.size() == kv.size(), "actual_seq_qlen has %zu entries, actual_seq_kvlen %zu: one a sequence",
          q.size(), kv.size());
  size_t count = q.size();
  while (count > 1 && q[count - 1] == 0 && kv[count - 1] == 0) --count;  // trailing zeros drop those sequences
  int64_t q_before = 0, kv_before = 0;
  for (size_t i = 0; i < count; ++i) {
    require(q[i] >= q_before && kv[i] >= kv_before,
            "actual_seq_qlen and actual_seq_kvlen are cumulative: entry %zu is %lld after %lld, %lld after %lld", i,
            ll(q[i]), ll(q_before), ll(kv[i]), ll(kv_before));
    p->q_begin.push_back(q_before), p->q_len.push_back(q[i] - q_before);
    p->kv_begin.push_back(kv_before), p->kv_len.push_back(kv[i] - kv_before);
    q_before = q[i], kv_before = kv[i];
  }
  require(q_before == q_tokens && kv_before == kv_tokens,
          "actual_seq_qlen ends at %lld and actual_seq_kvlen at %lld, query has %lld tokens and key %lld", ll(q_before),
          ll(kv_before), ll(q_tokens), ll(kv_tokens));
  p->batch = static_cast<int64_t>(count);
}

void plan_mask(Plan* p, const FusionAttention& a) {
  const int64_t mode = a.sparse_mode;
  const Tensor mask = given("atten_mask", a.atten_mask);
  require(mode >= 0 && mode <= 6, "sparse_mode is %lld; the virtual NPU has 0 to 6", ll(mode));
  require(mask || mode == 0, "sparse_mode %lld needs atten_mask", ll(mode));
  p->sparse = {mode, a.pre, a.next, mode == 0 && mask};
  if (mode == 5) p->sparse.mode = 1;  // the mask says it all
  if (mode == 6) {
    p->sparse.mode = 3;
    const std::vector<int64_t> prefix = attention_lengths(a.prefix);
    require(static_cast<int64_t>(prefix.size()) == p->batch, "prefix has %zu entries for %lld sequences", prefix.size(),
            ll(p->batch));
    p->prefix = prefix;
  }
  if (mode == 4)
    require(a.pre + a.next >= 0, "pre_tokens %lld and next_tokens %lld: empty band", ll(a.pre), ll(a.next));
  if (!mask) return;
  require(attention_mask_dtype(mask.dtype), "atten_mask must be bool or uint8 (1 hides), got %s",
          dtype_name(mask.dtype));
  const int n = mask.ndim;
  if ((mode >= 2 && mode <= 4) || mode == 6) {
    const int64_t rows = mode == 6 ? 3072 : 2048;
    bool ones = n >= 2;
    for (int i = 0; i + 2 < n; ++i) ones = ones && mask.size(i) == 1;
    ALOFT_REQUIRE(ones && mask.size(-1) == 2048 && mask.size(-2) == rows,
                  "atten_mask has the shape %s; sparse_mode %lld takes the compressed [%lld, 2048]",
                  mask.shape_text().c_str(), ll(mode), ll(rows));
    if (contract() == Contract::Strict && mode != 6) p->mask = mask;
    return;
  }
  int64_t queries = 0, keys = 0;
  for (const int64_t s : p->q_len) queries = std::max(queries, s);
  for (const int64_t s : p->kv_len) keys = std::max(keys, s);
  bool ok = (n == 2 || n == 4) && mask.size(-1) >= keys && mask.size(-2) >= queries;
  if (ok && n == 4)
    ok = (mask.size(0) == 1 || mask.size(0) == p->batch) && (mask.size(1) == 1 || mask.size(1) == p->heads) &&
         (mask.size(0) == p->batch || mask.size(1) == 1);
  ALOFT_REQUIRE(ok,
                "atten_mask has the shape %s; sparse_mode %lld takes [Sq, Skv], [1, 1, Sq, Skv], [B, 1, Sq, Skv] or "
                "[B, N, Sq, Skv] with Sq %lld, Skv %lld, B %lld, N %lld",
                mask.shape_text().c_str(), ll(mode), ll(queries), ll(keys), ll(p->batch), ll(p->heads));
  p->mask = mask;
}

void plan_pse(Plan* p, const FusionAttention& a) {
  p->pse = given("pse", a.pse);
  p->pse_type = a.pse_type;
  if (!p->pse) return;
  require(a.pse_type == 0 || a.pse_type == 1, "pse_type is %lld; the virtual NPU has 0 and 1, not the built-in slopes",
          ll(a.pse_type));
  require(p->pse.dtype == p->q.dtype || p->pse.dtype == DType::F32, "pse must have query's dtype (%s), got %s",
          dtype_name(p->q.dtype), dtype_name(p->pse.dtype));
  int64_t queries = 0, keys = 0;
  for (const int64_t s : p->q_len) queries = std::max(queries, s);
  for (const int64_t s : p->kv_len) keys = std::max(keys, s);
  const Tensor& t = p->pse;
  const bool ok = t.ndim == 4 && (t.size(0) == 1 || t.size(0) == p->batch) && t.size(1) == p->heads &&
                  (t.size(2) == queries || t.size(2) == 1) && t.size(3) >= keys;
  ALOFT_REQUIRE(ok,
                "pse has the shape %s; it must be [1 or %lld, %lld, %lld or 1, %lld] (the compressed form with 1024 "
                "rows is not available on the virtual NPU)",
                t.shape_text().c_str(), ll(p->batch), ll(p->heads), ll(queries), ll(keys));
}

// result: the role of what the forward pass computes.
void plan_common(Plan* plan, const FusionAttention& a, decltype(&in) result) {
  Plan& p = *plan;
  p.q = in("query", a.query), p.k = in("key", a.key), p.v = in("value", a.value);
  p.q_rope = given("query_rope", a.query_rope), p.k_rope = given("key_rope", a.key_rope);
  p.out = result("attention_out", a.out, Layout::RowMajor);
  p.max = result("softmax_max", a.softmax_max, Layout::RowMajor);
  p.sum = result("softmax_sum", a.softmax_sum, Layout::RowMajor);
  if (given("padding_mask", a.padding_mask).present)
    fail(kParamInvalid, "padding_mask is given: the operator does not use it");
  p.layout = a.layout ? a.layout : "";
  require(p.layout == "BSH" || p.layout == "SBH" || p.layout == "BSND" || p.layout == "BNSD" || p.layout == "TND",
          "input_layout is \"%s\"; valid: BSH, SBH, BSND, BNSD, TND", p.layout.c_str());
  const DType t = p.q.dtype;
  require(t == DType::F16 || t == DType::BF16 || t == DType::F32, "query must be float16, bfloat16 or float32, got %s",
          dtype_name(t));
  require(p.k.dtype == t && p.v.dtype == t && p.out.dtype == t,
          "query, key, value and attention_out must share a dtype, got %s, %s, %s, %s", dtype_name(t),
          dtype_name(p.k.dtype), dtype_name(p.v.dtype), dtype_name(p.out.dtype));
  require(a.heads > 0, "head_num is %lld, it must be positive", ll(a.heads));
  require(a.keep_prob > 0 && a.keep_prob <= 1, "keep_prob is %g; it must lie in (0, 1]", a.keep_prob);
  p.heads = a.heads;
  p.scale = static_cast<float>(a.scale), p.keep_prob = static_cast<float>(a.keep_prob);
  p.packed = p.layout == "TND";
  p.same_as_input = a.softmax_layout && !std::strcmp(a.softmax_layout, "same_as_input");

  const AttentionView q = attention_view("query", p.q, p.layout, p.heads);
  require(q.heads == p.heads, "query has %lld heads, head_num is %lld", ll(q.heads), ll(p.heads));
  p.d = q.d;
  p.kv_heads = 0;
  if (p.layout == "BSH" || p.layout == "SBH") {
    require(p.k.ndim == 3 && p.d > 0 && p.k.size(2) % p.d == 0, "key has no whole number of heads of size %lld",
            ll(p.d));
    p.kv_heads = p.k.size(2) / p.d;
  } else if (p.k.ndim == static_cast<int>(p.layout.size())) {
    p.kv_heads = p.k.size(static_cast<int>(p.layout.find('N')));
  }
  require(p.kv_heads > 0 && p.heads % p.kv_heads == 0, "head_num %lld is no multiple of key's %lld heads", ll(p.heads),
          ll(p.kv_heads));
  const AttentionView k = attention_view("key", p.k, p.layout, p.kv_heads);
  const AttentionView v = attention_view("value", p.v, p.layout, p.kv_heads);
  require(k.d == p.d, "query has the head size %lld, key %lld", ll(p.d), ll(k.d));
  require(
      v.heads == p.kv_heads && k.tokens == v.tokens && k.batch == q.batch && v.batch == q.batch,
      "query, key and value disagree: batches %lld, %lld, %lld; key has %lld tokens of %lld heads, value %lld of %lld",
      ll(q.batch), ll(k.batch), ll(v.batch), ll(k.tokens), ll(k.heads), ll(v.tokens), ll(v.heads));
  p.d_v = v.d;
  limit(p.heads <= 256, "%lld heads, at most 256", ll(p.heads));
  require(p.d >= 1 && p.d <= 768 && p.d_v <= 768, "head sizes are %lld and %lld (value); 1 to 768", ll(p.d), ll(p.d_v));
  require(!p.q_rope == !p.k_rope, "query_rope and key_rope are given together or not at all");
  if (p.q_rope) {
    const AttentionView qr = attention_view("query_rope", p.q_rope, p.layout, p.heads);
    const AttentionView kr = attention_view("key_rope", p.k_rope, p.layout, p.kv_heads);
    require(qr.d == kr.d && qr.tokens == q.tokens && kr.tokens == k.tokens && qr.heads == p.heads &&
                kr.heads == p.kv_heads && qr.batch == q.batch && kr.batch == k.batch,
            "query_rope and key_rope do not match query and key");
    p.d_rope = qr.d;
  }
  if (p.packed) {
    plan_packed(&p, q.tokens, k.tokens, attention_lengths(a.q_lengths), attention_lengths(a.kv_lengths));
  } else {
    p.batch = q.batch;
    p.q_begin.assign(static_cast<size_t>(p.batch), 0), p.kv_begin = p.q_begin;
    p.q_len.assign(static_cast<size_t>(p.batch), q.tokens), p.kv_len.assign(static_cast<size_t>(p.batch), k.tokens);
  }
  plan_mask(&p, a);
  plan_pse(&p, a);
  p.sink = given("sink", a.sink);
  if (p.sink)
    require(p.sink.dtype == DType::F32 && p.sink.ndim == 1 && p.sink.size(0) == p.heads, "sink must be float32 [%lld]",
            ll(p.heads));
  p.drop = p.keep_prob < 1.f ? given("drop_mask", a.drop_mask) : Tensor();
  require(p.keep_prob >= 1.f || p.drop, "keep_prob is %g but no dropout mask is given", a.keep_prob);
  if (p.drop) {
    int64_t bits = 0;
    for (size_t b = 0; b < p.q_len.size(); ++b) bits += p.heads * p.q_len[b] * p.kv_len[b];
    require(
        p.drop.contiguous() && (p.drop.dtype == DType::U8 || p.drop.dtype == DType::Bool) && p.drop.numel() * 8 >= bits,
        "the dropout mask must be uint8 with one bit a weight: %lld bits, got %lld bytes of %s", ll(bits),
        ll(p.drop.numel()), dtype_name(p.drop.dtype));
  }
  const AttentionView o = attention_view("attention_out", p.out, p.layout, p.heads);
  require(o.batch == q.batch && o.tokens == q.tokens && o.heads == p.heads && o.d == p.d_v,
          "attention_out does not have query's shape with the head size of value %lld", ll(p.d_v));
  const int64_t stats = q.batch * q.tokens * p.heads * 8;
  for (const Tensor* s : {&p.max, &p.sum})
    require(s->dtype == DType::F32 && s->numel() == stats && s->contiguous(),
            "softmax_max and softmax_sum must be contiguous float32 with %lld elements", ll(stats));
}

// The operands of the work, addressable, and the problem over them.
struct Bound {
  AttentionOperand q, k, v, q_rope, k_rope, pse, mask, out;
  AttentionView qv, kv, vv, qrv, krv, ov;
  std::vector<float> sinks;
  std::vector<AttentionSequence> sequences;
  AttentionProblem problem;

  Bound(const Plan& plan, Dense::Use out_use)
      : q(plan.q),
        k(plan.k),
        v(plan.v),
        q_rope(plan.q_rope),
        k_rope(plan.k_rope),
        pse(plan.pse),
        mask(plan.sparse.mode < 2 ? plan.mask : Tensor()),
        out(plan.out, out_use) {
    qv = attention_view("query", q.tensor(), plan.layout, plan.heads);
    kv = attention_view("key", k.tensor(), plan.layout, plan.kv_heads);
    vv = attention_view("value", v.tensor(), plan.layout, plan.kv_heads);
    ov = attention_view("attention_out", out.tensor(), plan.layout, plan.heads);
    if (plan.mask && plan.sparse.mode >= 2) check_compressed_mask(plan.mask);
    sinks = attention_sinks(plan.sink);
    AttentionProblem& p = problem;
    p.type = attention_type(plan.q);
    p.heads = plan.heads, p.kv_heads = plan.kv_heads, p.d = plan.d, p.d_rope = plan.d_rope, p.d_v = plan.d_v;
    p.scale = plan.scale;
    p.sinks = sinks.empty() ? nullptr : sinks.data();
    if (plan.drop) p.drop_mask = plan.drop.ptr<uint8_t>(), p.keep_prob = plan.keep_prob;
    p.q_token = qv.token_stride, p.q_head = qv.head_stride, p.k_token = kv.token_stride, p.k_head = kv.head_stride;
    p.v_token = vv.token_stride, p.v_head = vv.head_stride, p.out_token = ov.token_stride, p.out_head = ov.head_stride;
    if (q_rope) {
      qrv = attention_view("query_rope", q_rope.tensor(), plan.layout, plan.heads);
      krv = attention_view("key_rope", k_rope.tensor(), plan.layout, plan.kv_heads);
      p.q_rope_token = qrv.token_stride, p.q_rope_head = qrv.head_stride;
      p.k_rope_token = krv.token_stride, p.k_rope_head = krv.head_stride;
    }
    const Tensor& m = mask.tensor();
    const bool heads_differ = mask && m.ndim == 4 && m.size(1) > 1;
    if (mask) p.mask_token = m.stride(-2), p.mask_head = heads_differ ? m.stride(1) : 0;
    const Tensor& bias = pse.tensor();
    if (pse) {
      p.pse_type = attention_type(bias), p.pse_before_scale = plan.pse_type == 0;
      p.pse_head = bias.stride(1), p.pse_token = bias.size(2) > 1 ? bias.stride(2) : 0;
    }
    sequences.resize(static_cast<size_t>(plan.batch));
    int64_t drop_bit = 0;
    for (int64_t b = 0; b < plan.batch; ++b) {
      const auto i = static_cast<size_t>(b);
      AttentionSequence& s = sequences[i];
      s.q_len = plan.q_len[i], s.kv_len = plan.kv_len[i];
      s.q = q.at(rows(qv, b, plan.q_begin[i]));
      s.k = k.at(rows(kv, b, plan.kv_begin[i]));
      s.v = v.at(rows(vv, b, plan.kv_begin[i]));
      s.out = out.at(rows(ov, b, plan.q_begin[i]));
      if (q_rope) {
        s.q_rope = q_rope.at(rows(qrv, b, plan.q_begin[i]));
        s.k_rope = k_rope.at(rows(krv, b, plan.kv_begin[i]));
      }
      const bool by_token = plan.packed && plan.same_as_input;
      s.stat_token = by_token ? plan.heads * 8 : 8;
      s.stat_head = by_token ? 8 : s.q_len * 8;
      const int64_t first = (plan.packed ? plan.q_begin[i] : b * s.q_len) * plan.heads * 8;
      s.softmax_max = plan.max.ptr<float>() + first;
      s.softmax_sum = plan.sum.ptr<float>() + first;
      if (mask) s.mask = reinterpret_cast<const uint8_t*>(mask.at(m.ndim == 4 && m.size(0) > 1 ? b * m.stride(0) : 0));
      if (pse) s.pse = pse.at(bias.size(0) > 1 ? b * bias.stride(0) : 0);
      plan.sparse.apply(&s);
      if (!plan.prefix.empty()) s.prefix = std::min(plan.prefix[i], s.kv_len);
      s.drop_bit = drop_bit;
      drop_bit += plan.heads * s.q_len * s.kv_len;
    }
    p.sequences = sequences.data();
    p.count = plan.batch;
  }

  static int64_t rows(const AttentionView& v, int64_t b, int64_t first) {
    return b * v.batch_stride + first * v.token_stride;
  }
};

void run_forward(const Plan& plan) {
  Bound bound(plan, Dense::Write);
  note_attention(bound.problem);
  attention_forward(bound.problem);
  bound.out.commit();
}

// A gradient operand and where its rows lie.
struct Target {
  AttentionOperand operand;
  AttentionView view;
  Target(const Tensor& t, const Text& layout, int64_t heads) : operand(t, Dense::Write) {
    if (t) view = attention_view("a gradient", operand.tensor(), layout, heads);
  }
  void* at(int64_t b, int64_t first) const { return operand ? operand.at(Bound::rows(view, b, first)) : nullptr; }
};

void run_backward(const Plan& plan) {
  const Bound bound(plan, Dense::Read);
  const AttentionOperand dy(plan.dy);
  const AttentionView dyv = attention_view("dy", dy.tensor(), plan.layout, plan.heads);
  Target dq(plan.dq, plan.layout, plan.heads), dk(plan.dk, plan.layout, plan.kv_heads),
      dv(plan.dv, plan.layout, plan.kv_heads), dq_rope(plan.dq_rope, plan.layout, plan.heads),
      dk_rope(plan.dk_rope, plan.layout, plan.kv_heads);
  AttentionGrad g;
  g.d_out_token = dyv.token_stride, g.d_out_head = dyv.head_stride;
  g.dq_token = dq.view.token_stride, g.dq_head = dq.view.head_stride;
  g.dk_token = dk.view.token_stride, g.dk_head = dk.view.head_stride;
  g.dv_token = dv.view.token_stride, g.dv_head = dv.view.head_stride;
  g.dq_rope_token = dq_rope.view.token_stride, g.dq_rope_head = dq_rope.view.head_stride;
  g.dk_rope_token = dk_rope.view.token_stride, g.dk_rope_head = dk_rope.view.head_stride;
  std::vector<float> dsinks(plan.dsink ? static_cast<size_t>(plan.heads) : 0);
  g.dsinks = dsinks.empty() ? nullptr : dsinks.data();
  // The bias gradient is gathered in fp32 with the strides of the bias.
  std::vector<float> image;
  const Tensor& bias = bound.pse.tensor();
  if (plan.dpse) {
    int64_t span = 1;
    for (int i = 0; i < bias.ndim; ++i) span += (bias.size(i) - 1) * bias.stride(i);
    image.assign(static_cast<size_t>(span), 0.f);
  }
  std::vector<AttentionGradSequence> sequences(static_cast<size_t>(plan.batch));
  for (int64_t b = 0; b < plan.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    AttentionGradSequence& s = sequences[i];
    s.d_out = dy.at(Bound::rows(dyv, b, plan.q_begin[i]));
    s.dq = dq.at(b, plan.q_begin[i]), s.dk = dk.at(b, plan.kv_begin[i]), s.dv = dv.at(b, plan.kv_begin[i]);
    s.dq_rope = dq_rope.at(b, plan.q_begin[i]), s.dk_rope = dk_rope.at(b, plan.kv_begin[i]);
    if (plan.dpse) s.dpse = image.data() + (bias.size(0) > 1 ? b * bias.stride(0) : 0);
  }
  g.sequences = sequences.data();
  attention_backward(bound.problem, g);
  for (Target* t : {&dq, &dk, &dv, &dq_rope, &dk_rope}) t->operand.commit();
  if (plan.dsink) {
    for (int64_t h = 0; h < plan.heads; ++h)
      plan.dsink.ptr<float>()[h * plan.dsink.stride(0)] = dsinks[static_cast<size_t>(h)];
  }
  if (plan.dpse) {
    const Tensor& to = plan.dpse;
    for (int64_t b = 0; b < bias.size(0); ++b)
      for (int64_t h = 0; h < bias.size(1); ++h)
        for (int64_t r = 0; r < bias.size(2); ++r)
          for (int64_t c = 0; c < bias.size(3); ++c) {
            const float v = image[static_cast<size_t>(b * bias.stride(0) + h * bias.stride(1) + r * bias.stride(2) +
                                                      c * bias.stride(3))];
            store_float(to, b * to.stride(0) + h * to.stride(1) + r * to.stride(2) + c * to.stride(3), v);
          }
  }
}

}  // namespace

Work plan_fusion_attention(const FusionAttention& a) {
  auto plan = std::make_shared<Plan>();
  plan_common(plan.get(), a, out);
  if (plan->out.numel() == 0) return nullptr;
  return [plan] { run_forward(*plan); };
}

Work plan_fusion_attention_grad(const FusionAttention& a, const FusionAttentionGrad& g) {
  auto plan = std::make_shared<Plan>();
  Plan& p = *plan;
  plan_common(&p, a, in);
  p.dy = in("dy", g.dy);
  p.dq = out("dq", g.dq), p.dk = out("dk", g.dk), p.dv = out("dv", g.dv);
  ALOFT_REQUIRE(p.dy.same_shape(p.out) && p.dy.dtype == p.out.dtype, "dy must be %s %s like attention_out, got %s %s",
                dtype_name(p.out.dtype), p.out.shape_text().c_str(), dtype_name(p.dy.dtype), p.dy.shape_text().c_str());
  require(p.dq.same_shape(p.q) && p.dk.same_shape(p.k) && p.dv.same_shape(p.v) && p.dq.dtype == p.q.dtype &&
              p.dk.dtype == p.q.dtype && p.dv.dtype == p.q.dtype,
          "dq, dk and dv must have the shapes and dtype of query, key and value");
  if (p.q_rope) {
    p.dq_rope = out("dq_rope", g.dq_rope), p.dk_rope = out("dk_rope", g.dk_rope);
    require(p.dq_rope.same_shape(p.q_rope) && p.dk_rope.same_shape(p.k_rope) && p.dq_rope.dtype == p.q.dtype &&
                p.dk_rope.dtype == p.q.dtype,
            "dq_rope and dk_rope must have the shapes and dtype of query_rope and key_rope");
  }
  if (p.pse) {
    p.dpse = out("dpse", g.dpse);
    require(p.dpse.same_shape(p.pse) && p.dpse.dtype == p.pse.dtype, "dpse must have the shape and dtype of pse");
  }
  if (p.sink) {
    p.dsink = out("dsink", g.dsink);
    require(p.dsink.dtype == DType::F32 && p.dsink.same_shape(p.sink), "dsink must be float32 like sink");
  }
  if (p.q.numel() == 0 && p.k.numel() == 0) return nullptr;
  return [plan] { run_backward(*plan); };
}

}  // namespace aloft
