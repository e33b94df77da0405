// aclnnAttentionUpdate: merges partial attention results by their log-sum-exp.
#include <cmath>

#include "kernels/half.h"
#include "kernels/parallel.h"
#include "opapi/attention.h"

namespace aloft {
namespace {

float read(const Tensor& t, int64_t at) {
  if (t.dtype == DType::F32) return t.ptr<float>()[at];
  return t.dtype == DType::F16 ? to_float(t.ptr<f16>()[at]) : to_float(t.ptr<bf16>()[at]);
}

struct Plan {
  std::vector<Tensor> lse, local;
  Tensor out, lse_out;
  int64_t rows = 0, d = 0;
};

void merge_row(const Plan& p, int64_t row) {
  float m = -__builtin_inff();
  for (const Tensor& t : p.lse) m = std::max(m, read(t, row * t.stride(0)));
  float total = 0.f;
  // All parts at -inf give NaN, as exp(-inf + inf) does: callers make them finite first.
  for (const Tensor& t : p.lse) total += std::exp(read(t, row * t.stride(0)) - m);
  const float lse = m + std::log(total);
  for (int64_t c = 0; c < p.d; ++c) {
    float sum = 0.f;
    for (size_t i = 0; i < p.local.size(); ++i) {
      const Tensor& t = p.local[i];
      sum += std::exp(read(p.lse[i], row * p.lse[i].stride(0)) - lse) * read(t, row * t.stride(0) + c * t.stride(1));
    }
    store_float(p.out, row * p.out.stride(0) + c * p.out.stride(1), sum);
  }
  if (p.lse_out) p.lse_out.ptr<float>()[row * p.lse_out.stride(0)] = lse;
}

}  // namespace

ALOFT_ACLNN(AttentionUpdate,
            (const aclTensorList* lse, const aclTensorList* local_out, int64_t update_type, const aclTensor* out_,
             const aclTensor* lse_out),
            (lse, local_out, update_type, out_, lse_out)) {
  auto plan = std::make_shared<Plan>();
  Plan& p = *plan;
  if (!lse || !local_out) fail(kParamNull, "lse and local_out are required");
  const size_t parts = lse->items.size();
  require(parts >= 1 && local_out->items.size() == parts, "lse has %zu parts, local_out %zu: as many, at least one",
          parts, local_out->items.size());
  limit(parts <= 16, "%zu parts, at most 16", parts);
  require(update_type == 0 || update_type == 1, "update_type is %lld; valid: 0 (output), 1 (output and lse)",
          static_cast<long long>(update_type));
  p.out = out("out", out_);
  for (size_t i = 0; i < parts; ++i) {
    p.lse.push_back(in("lse", lse->items[i]));
    p.local.push_back(in("local_out", local_out->items[i]));
    const Tensor &l = p.lse[i], &o = p.local[i], &first = p.local[0];
    ALOFT_REQUIRE(l.dtype == DType::F32 && l.ndim == 1, "lse[%zu] must be float32 [N], got %s %s", i,
                  dtype_name(l.dtype), l.shape_text().c_str());
    ALOFT_REQUIRE(o.ndim == 2 && o.same_shape(first) && o.dtype == first.dtype && o.size(0) == l.size(0),
                  "local_out[%zu] must be [%lld, D] of one dtype like the others, got %s %s", i,
                  static_cast<long long>(l.size(0)), dtype_name(o.dtype), o.shape_text().c_str());
  }
  const DType t = p.local[0].dtype;
  require(t == DType::F32 || t == DType::F16 || t == DType::BF16,
          "local_out must be float32, float16 or bfloat16, got %s", dtype_name(t));
  p.rows = p.local[0].size(0), p.d = p.local[0].size(1);
  limit(p.d >= 8 && p.d <= 512 && p.d % 8 == 0, "local_out has D = %lld; multiples of 8 up to 512",
        static_cast<long long>(p.d));
  require(p.out.same_shape(p.local[0]) && p.out.dtype == t, "out must have the shape and dtype of local_out");
  if (update_type == 1) {
    p.lse_out = out("lse_out", lse_out);
    require(p.lse_out.dtype == DType::F32 && p.lse_out.ndim == 1 && p.lse_out.size(0) == p.rows,
            "lse_out must be float32 [N]");
  }
  if (!p.rows) return nullptr;
  return [plan] {
    parallel_for(plan->rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) merge_row(*plan, row);
    });
  };
}

}  // namespace aloft
