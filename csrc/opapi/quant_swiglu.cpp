// Gated units that end in int8 rows.
#include <cstring>
#include <memory>

#include "kernels/quant_fused.h"
#include "opapi/quant.h"

namespace aloft {
namespace {

struct Plan {
  Tensor x, weight_scale, row_scale, bias, scale, zero, groups, y, scales;
  bool counts = false, grouped_scales = false;
  GatedQuantArgs args;
};

bool is_dynamic(const char* mode) {
  require(mode && (!std::strcmp(mode, "static") || !std::strcmp(mode, "dynamic")),
          "quant_mode is \"%s\"; valid: static, dynamic", mode ? mode : "");
  return !std::strcmp(mode, "dynamic");
}

void plan_rows(Plan* p, const char* name) {
  const Tensor& x = p->x;
  require(x.ndim >= 2, "%s has the shape %s, it must have at least two dimensions", name, x.shape_text().c_str());
  require(x.size(-1) % 2 == 0, "the last dimension of %s %s must be even", name, x.shape_text().c_str());
  GatedQuantArgs& a = p->args;
  a.dtype = x.dtype, a.cols = x.size(-1) / 2, a.rows = x.size(-1) ? x.numel() / x.size(-1) : 0;
  Tensor half = x;
  half.sizes[x.ndim - 1] /= 2;
  a.out.out = quant_out("y", p->y, "half of the input", half);
  ALOFT_REQUIRE(p->scales.dtype == DType::F32 && p->scales.numel() == a.rows && p->scales.contiguous(),
                "scale must be float32 with one value for each of the %lld rows, got %s %s", ll(a.rows),
                dtype_name(p->scales.dtype), p->scales.shape_text().c_str());
}

void check_by_group(const char* name, const Tensor& t, Plan* p, int64_t groups, int64_t cols) {
  if (!t) return;
  require(t.dtype == DType::F32 || is_float(t.dtype), "%s must be float32, got %s", name, dtype_name(t.dtype));
  const bool full = t.numel() == groups * cols && t.size(-1) == cols, one = t.numel() == groups;
  ALOFT_REQUIRE(full || one, "%s has the shape %s, it must be [%lld, %lld] or [%lld]", name, t.shape_text().c_str(),
                ll(groups), ll(cols), ll(groups));
}

void run(const Plan& p) {
  GatedQuantArgs a = p.args;
  Dense x(p.x, Dense::Read), y(p.y, Dense::Write);
  const std::vector<float> weight = float_values(p.weight_scale), by_row = float_values(p.row_scale);
  std::vector<float> scale = float_values(p.scale), zero = float_values(p.zero);
  std::vector<int32_t> bias;
  if (p.bias) {
    Dense dense(p.bias, Dense::Read);
    bias.assign(static_cast<int32_t*>(dense.data()), static_cast<int32_t*>(dense.data()) + p.bias.numel());
  }
  std::vector<int64_t> ends;
  int64_t done = a.rows;
  if (p.groups) {
    Dense dense(p.groups, Dense::Read);
    int64_t before = 0;
    for (int64_t i = 0; i < p.groups.numel(); ++i) {
      const int64_t v = p.groups.dtype == DType::I64 ? static_cast<int64_t*>(dense.data())[i]
                                                     : static_cast<int32_t*>(dense.data())[i];
      const int64_t end = p.counts ? before + v : v;
      require(end >= before && end <= a.rows, "group_index[%lld] leads to row %lld, x has %lld rows", ll(i), ll(end),
              ll(a.rows));
      ends.push_back(before = end);
    }
    done = before;
    a.group_end = ends.data(), a.groups = static_cast<int64_t>(ends.size());
  }
  const size_t full = static_cast<size_t>(a.groups * a.cols);
  if (p.zero && zero.size() != scale.size()) {  // one index serves both
    const auto spread = [&](std::vector<float>* v) {
      std::vector<float> all(full);
      for (size_t i = 0; i < full; ++i) all[i] = (*v)[v->size() == full ? i : i / static_cast<size_t>(a.cols)];
      *v = all;
    };
    spread(&scale), spread(&zero);
  }
  a.x = x.data(), a.weight_scale = p.weight_scale ? weight.data() : nullptr;
  a.row_scale = p.row_scale ? by_row.data() : nullptr, a.bias = p.bias ? bias.data() : nullptr;
  static const float kOne = 1.f;
  a.out.step = scale.size() == full && p.scale ? 1 : 0;
  a.scale_group = p.scale ? (a.out.step ? a.cols : 1) : 0;
  a.out.scale = p.scale ? scale.data() : a.out.dynamic ? nullptr : &kOne;
  a.out.zero = p.zero ? zero.data() : nullptr;
  a.out.y = y.data(), a.out.scales = p.scales.ptr<float>();
  gated_quant(a);
  y.commit();
  if (done < a.rows && contract() == Contract::Strict) {  // rows of no group
    Tensor rest = p.y;
    if (rest.ndim == 2 && rest.contiguous()) {
      rest.sizes[0] = a.rows - done;
      rest.data = rest.ptr<char>() + done * quant_row_bytes(a.out.out, a.cols);
      poison(rest);
    }
  }
}

}  // namespace

// y = quantised silu(activated half) * other half. group_list_type: 0 row ends, 1 counts.
ALOFT_ACLNN(SwiGluQuantV2,
            (const aclTensor* x, const aclTensor* smooth, const aclTensor* offsets, const aclTensor* group_index,
             bool activate_left, const char* quant_mode, int64_t group_list_type, int32_t dst_type, const aclTensor* y,
             const aclTensor* scale),
            (x, smooth, offsets, group_index, activate_left, quant_mode, group_list_type, dst_type, y, scale)) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x", x), p.scale = optional("smooth_scales", smooth), p.zero = optional("offsets", offsets);
  p.groups = optional("group_index", group_index), p.y = out("y", y), p.scales = out("scale", scale);
  require(is_float(p.x.dtype), "x must be float16, bfloat16 or float32, got %s", dtype_name(p.x.dtype));
  require(p.y.dtype == DType::I8 && dst_type == 2, "y is %s; the virtual NPU has int8", dtype_name(p.y.dtype));
  plan_rows(&p, "x");
  p.args.out.dynamic = is_dynamic(quant_mode);
  p.args.right = !activate_left;
  require(group_list_type == 0 || group_list_type == 1, "group_list_type is %lld; valid: 0, 1", ll(group_list_type));
  p.counts = group_list_type == 1;
  if (p.groups) {
    require(p.groups.dtype == DType::I32 || p.groups.dtype == DType::I64, "group_index must be int32, got %s",
            dtype_name(p.groups.dtype));
    limit(p.groups.dtype == DType::I32, "group_index is %s, it must be int32", dtype_name(p.groups.dtype));
  }
  require(p.args.out.dynamic || p.scale, "quant_mode static needs smooth_scales");
  require(!p.args.out.dynamic || !p.zero, "offsets go with quant_mode static");
  const int64_t groups = p.groups ? p.groups.numel() : 1;
  check_by_group("smooth_scales", p.scale, &p, groups, p.args.cols);
  check_by_group("offsets", p.zero, &p, groups, p.args.cols);
  limit(p.x.size(-1) <= 8192, "the last dimension of x is %lld, at most 8192", ll(p.x.size(-1)));
  if (!p.x.numel()) return nullptr;
  return [shared] { run(*shared); };
}

namespace {

Work plan_dequant(const aclTensor* x, const aclTensor* weight_scale, const aclTensor* activation_scale,
                  const aclTensor* bias, const aclTensor* quant_scale, const aclTensor* quant_offset,
                  const aclTensor* group_index, bool activate_left, const char* quant_mode, int64_t swiglu_mode,
                  double clamp_limit, double glu_alpha, double glu_bias, const aclTensor* y, const aclTensor* scale) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x", x), p.weight_scale = optional("weight_scale", weight_scale);
  p.row_scale = optional("activation_scale", activation_scale), p.bias = optional("bias", bias);
  p.scale = optional("quant_scale", quant_scale), p.zero = optional("quant_offset", quant_offset);
  p.groups = optional("group_index", group_index), p.y = out("y", y), p.scales = out("scale", scale);
  const bool integers = p.x.dtype == DType::I32;
  require(integers || p.x.dtype == DType::F16 || p.x.dtype == DType::BF16,
          "x must be int32, float16 or bfloat16, got %s", dtype_name(p.x.dtype));
  require(p.y.dtype == DType::I8, "y is %s; the virtual NPU has int8", dtype_name(p.y.dtype));
  plan_rows(&p, "x");
  GatedQuantArgs& a = p.args;
  a.out.dynamic = is_dynamic(quant_mode);
  a.right = !activate_left;
  require(swiglu_mode >= 0 && swiglu_mode <= 2, "swiglu_mode is %lld; valid: 0, 1, 2", ll(swiglu_mode));
  a.interleaved = swiglu_mode == 1, a.clipped = swiglu_mode != 0;
  if (a.clipped) {
    require(clamp_limit > 0, "clamp_limit is %g, it must be positive", clamp_limit);
    a.limit = static_cast<float>(clamp_limit), a.alpha = static_cast<float>(glu_alpha);
    a.glu_bias = static_cast<float>(glu_bias);
  }
  const int64_t groups = p.groups ? p.groups.numel() : 1;
  p.counts = true;
  if (p.groups) {
    require(p.groups.dtype == DType::I64, "group_index must be int64, got %s", dtype_name(p.groups.dtype));
    limit(!p.bias && !p.zero, "bias and quant_offset do not go with group_index");
  }
  if (integers) {
    require(p.weight_scale.present, "int32 x needs weight_scale");
    ALOFT_REQUIRE(p.weight_scale.dtype == DType::F32 && p.weight_scale.numel() == groups * 2 * a.cols,
                  "weight_scale must be float32 [%lld, %lld], got %s %s", ll(groups), ll(2 * a.cols),
                  dtype_name(p.weight_scale.dtype), p.weight_scale.shape_text().c_str());
    if (p.row_scale) {
      ALOFT_REQUIRE(p.row_scale.dtype == DType::F32 && p.row_scale.numel() == a.rows,
                    "activation_scale must be float32 [%lld], got %s %s", ll(a.rows), dtype_name(p.row_scale.dtype),
                    p.row_scale.shape_text().c_str());
    }
    if (p.bias) {
      ALOFT_REQUIRE(p.bias.dtype == DType::I32 && p.bias.numel() == 2 * a.cols, "bias must be int32 [%lld], got %s %s",
                    ll(2 * a.cols), dtype_name(p.bias.dtype), p.bias.shape_text().c_str());
    }
  } else {
    require(!p.weight_scale && !p.row_scale && !p.bias, "weight_scale, activation_scale and bias go with int32 x");
  }
  require(a.out.dynamic || p.scale, "quant_mode static needs quant_scale");
  require(!a.out.dynamic || !p.zero, "quant_offset goes with quant_mode static");
  check_by_group("quant_scale", p.scale, &p, groups, a.cols);
  check_by_group("quant_offset", p.zero, &p, groups, a.cols);
  limit(a.cols <= 10496 && (!p.groups || a.cols % 64 == 0),
        "half of x's last dimension is %lld; at most 10496, with groups a multiple of 64", ll(a.cols));
  if (!p.x.numel()) return nullptr;
  return [shared] { run(*shared); };
}

}  // namespace

ALOFT_ACLNN(DequantSwigluQuant,
            (const aclTensor* x, const aclTensor* weight_scale, const aclTensor* activation_scale,
             const aclTensor* bias, const aclTensor* quant_scale, const aclTensor* quant_offset,
             const aclTensor* group_index, bool activate_left, const char* quant_mode, const aclTensor* y,
             const aclTensor* scale),
            (x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, activate_left, quant_mode,
             y, scale)) {
  return plan_dequant(x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, activate_left,
                      quant_mode, 0, 7, 1.702, 1, y, scale);
}

ALOFT_ACLNN(DequantSwigluQuantV2,
            (const aclTensor* x, const aclTensor* weight_scale, const aclTensor* activation_scale,
             const aclTensor* bias, const aclTensor* quant_scale, const aclTensor* quant_offset,
             const aclTensor* group_index, bool activate_left, const char* quant_mode, int64_t dst_type,
             const char* round_mode, int64_t activate_dim, int64_t swiglu_mode, double clamp_limit, double glu_alpha,
             double glu_bias, const aclTensor* y, const aclTensor* scale),
            (x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, activate_left, quant_mode,
             dst_type, round_mode, activate_dim, swiglu_mode, clamp_limit, glu_alpha, glu_bias, y, scale)) {
  return plan_dequant(x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index, activate_left,
                      quant_mode, swiglu_mode, clamp_limit, glu_alpha, glu_bias, y, scale);
}

}  // namespace aloft
