// Grouped quantised product, SwiGLU and quantisation by token in one.
#include <algorithm>
#include <memory>

#include "kernels/quant_fused.h"
#include "opapi/grouped_matmul.h"

namespace aloft {
namespace {

struct Plan {
  Tensor x, weight_tensor, weight_scale, x_scale, smooth, assist, groups, y, scale;
  WeightView w;
  int64_t count = 0, group_list_type = 0;
};

Tensor given(const char* name, const aclTensor* t) {
  const Tensor found = optional(name, t);
  return found && found.numel() > 0 ? found : Tensor();
}

const aclTensor* one_of(const char* name, const aclTensorList* list, bool required) {
  if (!list || list->items.empty()) {
    require(!required, "%s is missing", name);
    return nullptr;
  }
  require(list->items.size() == 1, "%s has %zu tensors, the operator takes one", name, list->items.size());
  return list->items[0];
}

void run(const Plan& p) {
  Dense x(p.x, Dense::Read), y(p.y, Dense::Write);
  const int64_t rows = p.x.size(0), n = p.w.n, k = p.w.k;
  const std::vector<float> tokens = float_values(p.x_scale);
  const std::vector<float> smooth = float_values(p.smooth);
  std::vector<int8_t> unpacked;
  const int8_t* a = static_cast<const int8_t*>(x.data());
  if (p.x.dtype == DType::I32) {
    unpacked.resize(static_cast<size_t>(rows * k));
    unpack_int4(static_cast<const uint8_t*>(x.data()), rows * k, unpacked.data());
    a = unpacked.data();
  }
  const int64_t per_weight = p.weight_scale.numel() / p.count;
  int64_t done = 0;
  std::vector<float> wide, scale;
  for (const Group& g : read_groups(p.groups, p.group_list_type, p.count, rows)) {
    wide.resize(static_cast<size_t>(g.rows * n));
    QuantMatmul c;
    c.m = g.rows, c.n = n, c.k = k, c.a = a + g.begin * k, c.a_stride = k, c.b = p.w.weight;
    c.b.data = weight_matrix(p.w, g.weight);
    Tensor own = p.weight_scale;  // of this weight alone: there are many that no row wants
    own.sizes[0] = 1;
    own.data = own.ptr<char>() + g.weight * own.stride(0) * static_cast<int64_t>(dtype_size(own.dtype));
    c.scale = (scale = float_values(own)).data();
    if (per_weight != n) c.group = k / (per_weight / n);
    c.row_scale = tokens.data() + g.begin, c.out = wide.data(), c.out_stride = n;
    quant_matmul(c);
    GatedQuantArgs q;
    q.rows = g.rows, q.cols = n / 2, q.x = wide.data();
    q.out.dynamic = true, q.out.y = static_cast<char*>(y.data()) + g.begin * q.cols;
    q.out.scales = p.scale.ptr<float>() + g.begin;
    if (p.smooth) {
      q.out.step = smooth.size() > static_cast<size_t>(p.count);
      q.out.scale = smooth.data() + g.weight * (q.out.step ? q.cols : 1);
    }
    gated_quant(q);
    done = g.begin + g.rows;
  }
  y.commit();
  if (done < rows) {
    Tensor rest = p.y;
    rest.sizes[0] = rows - done;
    rest.data = rest.ptr<char>() + done * p.y.stride(0);
    poison(rest);
  }
}

Work plan(const aclTensor* x, const aclTensor* weight, const aclTensor* weight_scale, const aclTensor* assist,
          const aclTensor* bias, const aclTensor* x_scale, const aclTensor* smooth, const aclTensor* group_list,
          int64_t group_list_type, const aclTensor* y, const aclTensor* scale) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x", x);
  const Tensor w = in("weight", weight, Layout::Any);
  require(w.ndim == 3, "weight has the shape %s, it must be [experts, k, n]", w.shape_text().c_str());
  p.w = weight_view("weight", w);
  require(!p.w.gather, "weight must be contiguous or a transposed view");
  p.weight_scale = in("weight_scale", weight_scale), p.x_scale = in("x_scale", x_scale);
  p.smooth = given("smooth_scale", smooth), p.groups = in("group_list", group_list);
  p.assist = given("weight_assist_matrix", assist);
  p.y = out("output", y), p.scale = out("output_scale", scale);
  require(!given("bias", bias), "bias is not available");
  p.count = w.size(0), p.group_list_type = group_list_type;
  const bool int4_left = p.x.dtype == DType::I32;
  require(p.x.dtype == DType::I8 || int4_left, "x must be int8 or packed int4, got %s", dtype_name(p.x.dtype));
  require(!int4_left || p.w.weight.bits == 4, "x is packed int4, weight must be too");
  require(p.x.ndim == 2 && p.x.size(1) * (int4_left ? 8 : 1) == p.w.k, "x has the shape %s, k of weight is %lld",
          p.x.shape_text().c_str(), ll(p.w.k));
  require(p.w.n % 2 == 0, "n is %lld, it must be even", ll(p.w.n));
  limit(w.format == Format::FractalNZ || p.w.weight.bits == 4, "int8 weight must be FRACTAL_NZ");
  limit(p.w.n <= 10240 && p.w.k < 65536, "n is %lld (at most 10240), k %lld (below 65536)", ll(p.w.n), ll(p.w.k));
  const int64_t rows = p.x.size(0), n = p.w.n, groups = p.weight_scale.numel() / std::max<int64_t>(1, p.count * n);
  ALOFT_REQUIRE(groups >= 1 && p.weight_scale.numel() == p.count * n * groups && p.weight_scale.size(-1) == n &&
                    (groups == 1 || (p.w.k % groups == 0 && p.w.k / groups % 32 == 0)),
                "weight_scale has the shape %s, it must be [%lld, %lld] or [%lld, groups of k, %lld]",
                p.weight_scale.shape_text().c_str(), ll(p.count), ll(n), ll(p.count), ll(n));
  require(p.x_scale.dtype == DType::F32 && p.x_scale.numel() == rows, "x_scale must be float32 [%lld], got %s %s",
          ll(rows), dtype_name(p.x_scale.dtype), p.x_scale.shape_text().c_str());
  if (p.smooth) {
    ALOFT_REQUIRE(p.smooth.numel() == p.count || p.smooth.numel() == p.count * n / 2,
                  "smooth_scale has the shape %s, it must be [%lld, %lld] or [%lld]", p.smooth.shape_text().c_str(),
                  ll(p.count), ll(n / 2), ll(p.count));
  }
  require(p.y.dtype == DType::I8 && p.y.ndim == 2 && p.y.size(0) == rows && p.y.size(1) == n / 2 && p.y.contiguous(),
          "output must be int8 [%lld, %lld]", ll(rows), ll(n / 2));
  require(p.scale.dtype == DType::F32 && p.scale.numel() == rows && p.scale.contiguous(),
          "output_scale must be float32 [%lld]", ll(rows));
  check_groups(p.groups, p.group_list_type, p.count);
  if (!p.y.numel()) return nullptr;
  return [shared] { run(*shared); };
}

}  // namespace

// group_list: row ends.
ALOFT_ACLNN(GroupedMatmulSwigluQuantWeightNZ,
            (const aclTensor* x, const aclTensor* weight, const aclTensor* bias, const aclTensor* offset,
             const aclTensor* weight_scale, const aclTensor* x_scale, const aclTensor* group_list, const aclTensor* y,
             const aclTensor* scale, const aclTensor* out_offset),
            (x, weight, bias, offset, weight_scale, x_scale, group_list, y, scale, out_offset)) {
  require(!given("offset", offset), "offset is not available");
  return plan(x, weight, weight_scale, nullptr, bias, x_scale, nullptr, group_list, 0, y, scale);
}

#define ALOFT_GMM_SWIGLU                                                                                           \
  const aclTensor *x, const aclTensorList *weight, const aclTensorList *weight_scale, const aclTensorList *assist, \
      const aclTensor *bias, const aclTensor *x_scale, const aclTensor *smooth, const aclTensor *group_list,       \
      int64_t dequant_mode, int64_t dequant_dtype, int64_t quant_mode, int64_t group_list_type,                    \
      const aclIntArray *tuning, const aclTensor *y, const aclTensor *scale
#define ALOFT_GMM_SWIGLU_NAMES                                                                                 \
  x, weight, weight_scale, assist, bias, x_scale, smooth, group_list, dequant_mode, dequant_dtype, quant_mode, \
      group_list_type, tuning, y, scale
#define ALOFT_GMM_SWIGLU_PLAN                                                                                         \
  require(quant_mode == 0 && (dequant_mode == 0 || dequant_mode == 1),                                                \
          "dequant_mode is %lld and quant_mode %lld; valid: 0 (by channel) or 1 (by group), and 0", ll(dequant_mode), \
          ll(quant_mode));                                                                                            \
  return plan(x, one_of("weight", weight, true), one_of("weight_scale", weight_scale, true),                          \
              one_of("weight_assist_matrix", assist, false), bias, x_scale, smooth, group_list, group_list_type, y,   \
              scale)

ALOFT_ACLNN(GroupedMatmulSwigluQuantV2, (ALOFT_GMM_SWIGLU), (ALOFT_GMM_SWIGLU_NAMES)) { ALOFT_GMM_SWIGLU_PLAN; }
ALOFT_ACLNN(GroupedMatmulSwigluQuantWeightNzV2, (ALOFT_GMM_SWIGLU), (ALOFT_GMM_SWIGLU_NAMES)) { ALOFT_GMM_SWIGLU_PLAN; }

}  // namespace aloft
