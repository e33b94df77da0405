// Mixtures of experts: choice of experts, order of rows by expert, weighted sums back.
#include "kernels/experts.h"

#include <algorithm>
#include <memory>

#include "opapi/quant.h"

namespace aloft {
namespace {

struct Choice {
  Tensor x, bias, finished, weights, ids, columns, scores;
  GatingArgs args;
};

// Shapes every gating shares: x [..., experts], weights and ids [..., k].
void plan_choice(Choice* c, int64_t k) {
  const Tensor& x = c->x;
  require(is_float(x.dtype), "x must be float32, float16 or bfloat16, got %s", dtype_name(x.dtype));
  ALOFT_REQUIRE(x.ndim == 2 || x.ndim == 3, "x has the shape %s, it must be [rows, experts] or [batch, rows, experts]",
                x.shape_text().c_str());
  GatingArgs& a = c->args;
  a.dtype = x.dtype, a.experts = x.size(-1), a.rows = a.experts ? x.numel() / a.experts : 0, a.k = k;
  require(k >= 1 && k <= a.experts, "k is %lld, valid are 1 to %lld, the number of experts", ll(k), ll(a.experts));
  require(a.experts < (int64_t{1} << 31), "x has %lld experts", ll(a.experts));
  require(c->weights.dtype == x.dtype, "y must be %s like x, got %s", dtype_name(x.dtype),
          dtype_name(c->weights.dtype));
  const auto check = [&](const char* name, const Tensor& t, DType dtype, int64_t cols) {
    ALOFT_REQUIRE(t.dtype == dtype && t.numel() == a.rows * cols && (t.ndim == 0 || t.size(-1) == cols),
                  "%s must be %s [rows, %lld], got %s %s", name, dtype_name(dtype), ll(cols), dtype_name(t.dtype),
                  t.shape_text().c_str());
  };
  check("y", c->weights, x.dtype, k), check("expert_idx", c->ids, DType::I32, k);
  if (c->columns) check("row_idx", c->columns, DType::I32, k);
  if (c->scores) check("out", c->scores, DType::F32, a.experts);
  if (c->finished) {
    require(c->finished.dtype == DType::Bool && c->finished.numel() == a.rows, "finished must be bool [%lld], got %s",
            ll(a.rows), dtype_name(c->finished.dtype));
  }
}

Work choose(std::shared_ptr<Choice> c) {
  if (!c->x.numel()) return nullptr;
  return [c] {
    GatingArgs a = c->args;
    Dense x(c->x, Dense::Read), weights(c->weights, Dense::Write), ids(c->ids, Dense::Write);
    std::unique_ptr<Dense> finished, columns, scores;
    const std::vector<float> bias = float_values(c->bias);
    a.x = x.data(), a.weights = weights.data(), a.ids = static_cast<int32_t*>(ids.data());
    a.bias = bias.empty() ? nullptr : bias.data();
    if (c->finished) {
      a.finished = static_cast<uint8_t*>((finished = std::make_unique<Dense>(c->finished, Dense::Read))->data());
    }
    if (c->columns) {
      a.columns = static_cast<int32_t*>((columns = std::make_unique<Dense>(c->columns, Dense::Write))->data());
    }
    if (c->scores) a.scores = static_cast<float*>((scores = std::make_unique<Dense>(c->scores, Dense::Write))->data());
    choose_experts(a);
    weights.commit(), ids.commit();
    if (columns) columns->commit();
    if (scores) scores->commit();
  };
}

struct Routing {
  Tensor x, ids, scale, to, row_idx, counts, to_scale;
  RoutingArgs args;
  int64_t rows = 0, count_type = 0, quant_mode = -1;
  bool counted = false, scatter = false;
};

Tensor rows_from(const Tensor& t, int64_t first) {
  Tensor rest = t;
  rest.sizes[0] = t.size(0) - first;
  rest.data = rest.ptr<char>() + first * t.stride(0) * static_cast<int64_t>(dtype_size(t.dtype));
  return rest;
}

void write_counts(const Routing& p, const std::vector<int64_t>& counts) {
  Dense out(p.counts, Dense::Write);
  int64_t* to = static_cast<int64_t*>(out.data());
  if (p.count_type == 2) {
    std::fill(to, to + p.counts.numel(), int64_t{0});
    for (size_t e = 0; e < counts.size(); ++e) {
      if (counts[e]) *to++ = p.args.low + static_cast<int64_t>(e), *to++ = counts[e];
    }
  } else {
    int64_t before = 0;
    for (size_t e = 0; e < counts.size(); ++e) to[e] = before = counts[e] + (p.count_type == 0 ? before : 0);
  }
  out.commit();
}

void route(const Routing& p) {
  Dense x(p.x, Dense::Read), ids(p.ids, Dense::Read), to(p.to, Dense::Write), place(p.row_idx, Dense::Write);
  RoutingArgs a = p.args;
  const int64_t pairs = a.tokens * a.k, cols = p.x.size(1);
  std::vector<int64_t> counts(static_cast<size_t>(a.high - a.low));
  std::vector<int32_t> pair(static_cast<size_t>(pairs)), other(static_cast<size_t>(p.scatter ? pairs : 0));
  a.ids = static_cast<const int32_t*>(ids.data()), a.counts = counts.data(), a.pair = pair.data();
  a.place = p.scatter ? other.data() : static_cast<int32_t*>(place.data());
  const int64_t total = order_by_expert(a);
  require(total >= 0, "expert_idx[%lld, %lld] is %d, valid are 0 to %lld", ll((-1 - total) / a.k),
          ll((-1 - total) % a.k), total < 0 ? a.ids[-1 - total] : 0, ll(a.experts - 1));
  if (p.scatter) std::copy(pair.begin(), pair.begin() + total, static_cast<int32_t*>(place.data()));
  const int64_t rows = std::min(total, p.rows);
  const void* from = x.data();
  std::vector<int8_t> codes;
  std::vector<float> token_scale;
  if (p.quant_mode == 1) {  // a token's row is the same at every expert
    codes.resize(static_cast<size_t>(a.tokens * cols)), token_scale.resize(static_cast<size_t>(a.tokens));
    DynamicQuantArgs q;
    q.rows = a.tokens, q.cols = cols, q.dtype = p.x.dtype, q.x = from, q.y = codes.data();
    q.scale = token_scale.data();
    std::vector<float> smooth = float_values(p.scale);
    q.smooth = smooth.empty() ? nullptr : smooth.data();
    dynamic_quant(q);
    from = codes.data();
  } else if (p.scale) {
    token_scale = float_values(p.scale);
  }
  gather_tokens(from, cols * static_cast<int64_t>(dtype_size(p.to.dtype)), pair.data(), a.k, rows, to.data());
  to.commit(), place.commit();
  if (p.to_scale && !token_scale.empty()) {
    Dense scale(p.to_scale, Dense::Write);
    for (int64_t i = 0; i < rows; ++i) {
      static_cast<float*>(scale.data())[i] = token_scale[static_cast<size_t>(pair[static_cast<size_t>(i)] / a.k)];
    }
    scale.commit();
  }
  if (p.counted) write_counts(p, counts);
  if (rows < p.rows) {
    poison(rows_from(p.to, rows));
    if (p.to_scale) poison(rows_from(p.to_scale, rows));
  }
  if (p.scatter && total < pairs) poison(rows_from(p.row_idx, total));
}

}  // namespace

ALOFT_ACLNN(MoeGatingTopKSoftmax,
            (const aclTensor* x, const aclTensor* finished, int64_t k, aclTensor* y, aclTensor* expert_idx,
             aclTensor* row_idx),
            (x, finished, k, y, expert_idx, row_idx)) {
  auto c = std::make_shared<Choice>();
  c->x = in("x", x), c->finished = optional("finished", finished), c->weights = out("y", y);
  c->ids = out("expert_idx", expert_idx), c->columns = out("row_idx", row_idx);
  limit(k <= 1024, "k is %lld, at most 1024", ll(k));
  plan_choice(c.get(), k);
  return choose(std::move(c));
}

ALOFT_ACLNN(MoeGatingTopKSoftmaxV2,
            (const aclTensor* x, const aclTensor* finished, int64_t k, int64_t renorm, bool softmax_wanted,
             aclTensor* y, aclTensor* expert_idx, aclTensor* softmax),
            (x, finished, k, renorm, softmax_wanted, y, expert_idx, softmax)) {
  auto c = std::make_shared<Choice>();
  c->x = in("x", x), c->finished = optional("finished", finished), c->weights = out("y", y);
  c->ids = out("expert_idx", expert_idx);
  require(renorm == 0 || renorm == 1, "renorm is %lld; valid: 0, 1", ll(renorm));
  limit(k <= 1024, "k is %lld, at most 1024", ll(k));
  c->args.winners_only = renorm == 1;
  if (softmax_wanted && renorm == 0) c->scores = out("softmax_result", softmax);
  plan_choice(c.get(), k);
  return choose(std::move(c));
}

// The softmax of all is divided by the winners' sum only on newer runtimes than the documented ones (renorm).
ALOFT_ACLNN(MoeGatingTopK,
            (const aclTensor* x, const aclTensor* bias, int64_t k, int64_t k_group, int64_t group_count,
             int64_t group_select_mode, int64_t renorm, int64_t norm_type, bool out_flag, double routed_scaling_factor,
             double eps, aclTensor* y, aclTensor* expert_idx, aclTensor* scores),
            (x, bias, k, k_group, group_count, group_select_mode, renorm, norm_type, out_flag, routed_scaling_factor,
             eps, y, expert_idx, scores)) {
  auto c = std::make_shared<Choice>();
  c->x = in("x", x), c->weights = out("y", y), c->ids = out("expert_idx", expert_idx);
  c->bias = optional("bias", bias);
  if (out_flag) c->scores = out("out", scores);
  GatingArgs& a = c->args;
  plan_choice(c.get(), k);
  require(c->x.ndim == 2, "x must be [rows, experts]");
  require(norm_type == 0 || norm_type == 1, "norm_type is %lld; valid: 0 (softmax), 1 (sigmoid)", ll(norm_type));
  require(renorm == 0, "renorm is %lld; valid: 0", ll(renorm));
  require(group_select_mode == 0 || group_select_mode == 1,
          "group_select_mode is %lld; valid: 0 (largest), 1 (sum of the two largest)", ll(group_select_mode));
  require(group_count >= 1 && a.experts % group_count == 0, "group_count is %lld, it must divide the %lld experts",
          ll(group_count), ll(a.experts));
  require(k_group >= 1 && k_group <= group_count, "k_group is %lld, valid are 1 to %lld", ll(k_group), ll(group_count));
  const int64_t each = a.experts / group_count;
  require(k <= k_group * each, "k is %lld, the %lld kept groups have %lld experts", ll(k), ll(k_group),
          ll(k_group * each));
  limit(a.experts <= 2048, "x has %lld experts, at most 2048", ll(a.experts));
  limit(group_count == 1 || each > 2, "groups of %lld experts, they must have more than 2", ll(each));
  if (c->bias) {
    require(c->bias.dtype == c->x.dtype && c->bias.numel() == a.experts, "bias must be %s [%lld], got %s",
            dtype_name(c->x.dtype), ll(a.experts), dtype_name(c->bias.dtype));
  }
  a.sigmoid = a.divide = norm_type == 1;
  a.groups = group_count, a.kept = k_group, a.two_largest = group_select_mode == 1;
  a.factor = static_cast<float>(routed_scaling_factor), a.epsilon = static_cast<float>(eps);
  return choose(std::move(c));
}

ALOFT_ACLNN(MoeInitRoutingV3,
            (const aclTensor* x, const aclTensor* expert_idx, const aclTensor* scale, const aclTensor* offset,
             int64_t active_num, int64_t expert_capacity, int64_t expert_num, int64_t drop_pad_mode,
             int64_t expert_tokens_num_type, bool expert_tokens_num_flag, int64_t quant_mode,
             const aclIntArray* active_expert_range, int64_t row_idx_type, aclTensor* expanded_x,
             aclTensor* expanded_row_idx, aclTensor* expert_tokens, aclTensor* expanded_scale),
            (x, expert_idx, scale, offset, active_num, expert_capacity, expert_num, drop_pad_mode,
             expert_tokens_num_type, expert_tokens_num_flag, quant_mode, active_expert_range, row_idx_type, expanded_x,
             expanded_row_idx, expert_tokens, expanded_scale)) {
  auto shared = std::make_shared<Routing>();
  Routing& p = *shared;
  RoutingArgs& a = p.args;
  p.x = in("x", x), p.ids = in("expert_idx", expert_idx), p.scale = optional("scale", scale);
  p.to = out("expanded_x", expanded_x), p.row_idx = out("expanded_row_idx", expanded_row_idx);
  p.counted = expert_tokens_num_flag, p.count_type = expert_tokens_num_type, p.quant_mode = quant_mode;
  p.scatter = row_idx_type == 1;
  require(p.x.ndim == 2, "x must be [tokens, hidden], it has %d dimensions", p.x.ndim);
  a.tokens = p.x.size(0);
  ALOFT_REQUIRE(p.ids.dtype == DType::I32 && p.ids.ndim == 2 && p.ids.size(0) == a.tokens,
                "expert_idx must be int32 [%lld, k], got %s %s", ll(a.tokens), dtype_name(p.ids.dtype),
                p.ids.shape_text().c_str());
  a.k = p.ids.size(1), a.experts = expert_num;
  require(a.k >= 1, "expert_idx has no choices");
  require(expert_num >= 1, "expert_num is %lld, it must be the number of experts", ll(expert_num));
  require(drop_pad_mode == 0, "drop_pad_mode is %lld; the virtual NPU has 0 (nothing is dropped)", ll(drop_pad_mode));
  require(quant_mode == -1 || quant_mode == 1, "quant_mode is %lld; the virtual NPU has -1 (none) and 1 (int8 by row)",
          ll(quant_mode));
  require(!optional("offset", offset), "offset goes with quant_mode 0, which the virtual NPU does not have");
  require(row_idx_type == 0 || row_idx_type == 1, "row_idx_type is %lld; valid: 0, 1", ll(row_idx_type));
  require(p.count_type >= 0 && p.count_type <= 2, "expert_tokens_num_type is %lld; valid: 0, 1, 2", ll(p.count_type));
  a.low = 0, a.high = expert_num;
  if (active_expert_range && !active_expert_range->values.empty()) {
    const std::vector<int64_t>& range = active_expert_range->values;
    require(range.size() == 2 && range[0] >= 0 && range[0] < range[1] && range[1] <= expert_num,
            "active_expert_range must be [first, end) within 0 to %lld", ll(expert_num));
    a.low = range[0], a.high = range[1];
  }
  const int64_t pairs = a.tokens * a.k, cols = p.x.size(1);
  require(pairs < (int64_t{1} << 31), "%lld pairs of token and expert", ll(pairs));
  p.rows = active_num > 0 ? std::min(active_num, pairs) : pairs;
  const DType to = quant_mode == 1 ? DType::I8 : p.x.dtype;
  require(is_float(p.x.dtype) || (quant_mode == -1 && p.x.dtype == DType::I8),
          "x must be float32, float16, bfloat16 (or int8 without quantisation), got %s", dtype_name(p.x.dtype));
  ALOFT_REQUIRE(p.to.dtype == to && p.to.ndim == 2 && p.to.size(0) == p.rows && p.to.size(1) == cols,
                "expanded_x must be %s [%lld, %lld], got %s %s", dtype_name(to), ll(p.rows), ll(cols),
                dtype_name(p.to.dtype), p.to.shape_text().c_str());
  require(p.row_idx.dtype == DType::I32 && p.row_idx.numel() == pairs, "expanded_row_idx must be int32 [%lld]",
          ll(pairs));
  if (p.counted) {
    p.counts = out("expert_tokens_count_or_cumsum", expert_tokens);
    require(p.counts.dtype == DType::I64 && p.counts.numel() == (p.count_type == 2 ? 2 * expert_num : a.high - a.low),
            "expert_tokens_count_or_cumsum must be int64, one a local expert: [%lld] of %lld to %lld, got %s",
            ll(a.high - a.low), ll(a.low), ll(a.high), p.counts.shape_text().c_str());
  }
  if (p.scale) {
    require(p.scale.dtype == DType::F32, "scale must be float32, got %s", dtype_name(p.scale.dtype));
    if (quant_mode == 1) {
      require(p.scale.numel() == cols, "scale must be [1, %lld]; the virtual NPU has no smoothing by expert", ll(cols));
    } else {
      require(p.scale.numel() == a.tokens, "scale must be [%lld]", ll(a.tokens));
    }
  }
  if (quant_mode == 1 || p.scale) {
    p.to_scale = out("expanded_scale", expanded_scale);
    require(p.to_scale.dtype == DType::F32 && p.to_scale.ndim == 1 && p.to_scale.size(0) >= p.rows,
            "expanded_scale must be float32 [%lld]", ll(p.rows));
  }
  if (!pairs) return nullptr;
  return [shared] { route(*shared); };
}

ALOFT_ACLNN(MoeTokenUnpermute,
            (const aclTensor* permuted_tokens, const aclTensor* sorted_indices, const aclTensor* probs,
             bool padded_mode, const aclIntArray* restore_shape, aclTensor* result),
            (permuted_tokens, sorted_indices, probs, padded_mode, restore_shape, result)) {
  const Tensor X = in("permuted_tokens", permuted_tokens), I = in("sorted_indices", sorted_indices);
  const Tensor P = optional("probs", probs), Y = out("out", result);
  require(!padded_mode, "padded_mode must be False");
  require(is_float(X.dtype) && X.ndim == 2, "permuted_tokens must be a float matrix, got %s of %d dimensions",
          dtype_name(X.dtype), X.ndim);
  require(I.dtype == DType::I32, "sorted_indices must be int32, got %s", dtype_name(I.dtype));
  CombineArgs a;
  a.dtype = X.dtype, a.row_count = X.size(0), a.cols = X.size(1), a.tokens = I.numel();
  if (P) {
    require(P.ndim == 2 && is_float(P.dtype), "probs must be a float matrix [tokens, k], got %s", dtype_name(P.dtype));
    a.tokens = P.size(0), a.k = P.size(1);
    require(P.dtype == X.dtype || P.dtype == DType::F32 || P.dtype == DType::BF16,
            "probs must be %s like permuted_tokens, float32 or bfloat16, got %s", dtype_name(X.dtype),
            dtype_name(P.dtype));
  }
  limit(a.k <= 512, "probs has %lld choices, at most 512", ll(a.k));
  require(a.tokens * a.k == I.numel(), "sorted_indices has %lld elements, probs %lld", ll(I.numel()),
          ll(a.tokens * a.k));
  ALOFT_REQUIRE(Y.dtype == X.dtype && Y.ndim == 2 && Y.size(0) == a.tokens && Y.size(1) == a.cols,
                "out must be %s [%lld, %lld], got %s %s", dtype_name(X.dtype), ll(a.tokens), ll(a.cols),
                dtype_name(Y.dtype), Y.shape_text().c_str());
  if (!Y.numel()) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), places(I, Dense::Read), y(Y, Dense::Write);
    const std::vector<float> weight = float_values(P);
    CombineArgs c = a;
    c.rows = x.data(), c.place = static_cast<const int32_t*>(places.data()), c.y = y.data();
    c.weight = P ? weight.data() : nullptr;
    if (contract() == Contract::Strict) {
      for (int64_t i = 0; i < I.numel(); ++i) {
        require(c.place[i] >= 0, "sorted_indices[%lld] is %d, it must not be negative", ll(i), c.place[i]);
      }
    }
    combine_rows(c);
    y.commit();
  };
}

}  // namespace aloft
