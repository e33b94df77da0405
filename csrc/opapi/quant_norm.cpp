// RMS normalisation that ends in int8 (or packed int4) rows.
#include <memory>

#include "kernels/quant_fused.h"
#include "opapi/quant.h"

namespace aloft {
namespace {

struct Branch {
  Tensor scale, zero, y, scales;
  bool dynamic = false, divide = false;
  QuantOut form = QuantOut::I8;
};

struct Plan {
  Tensor x, residual, sum, gamma, beta, rstd;
  Branch branch[2];
  NormQuantArgs args;
};

void check_row(const char* name, const Tensor& t, const Tensor& x, bool one) {
  const int64_t cols = x.size(-1);
  ALOFT_REQUIRE((t.numel() == cols && t.size(-1) == cols) || (one && t.numel() == 1),
                "%s has the shape %s, it must be %s[%lld], the last dimension of the input", name,
                t.shape_text().c_str(), one ? "[1] or " : "", ll(cols));
}

void plan_input(Plan* p, const char* name) {
  const Tensor& x = p->x;
  require(is_float(x.dtype), "%s must be float16, bfloat16 or float32, got %s", name, dtype_name(x.dtype));
  limit(x.dtype != DType::F32, "%s is float32, the operator takes float16 and bfloat16", name);
  require(x.ndim >= 1, "%s has no dimensions", name);
  require(p->gamma.dtype == x.dtype, "gamma must have the dtype of %s (%s), got %s", name, dtype_name(x.dtype),
          dtype_name(p->gamma.dtype));
  check_row("gamma", p->gamma, x, false);
  if (p->beta) {
    require(p->beta.dtype == x.dtype, "beta must have the dtype of %s (%s), got %s", name, dtype_name(x.dtype),
            dtype_name(p->beta.dtype));
    check_row("beta", p->beta, x, false);
  }
  p->args.dtype = x.dtype, p->args.cols = x.size(-1);
  p->args.rows = p->args.cols ? x.numel() / p->args.cols : 0;
}

void run(const Plan& p) {
  NormQuantArgs a = p.args;
  Dense x(p.x, Dense::Read);
  std::unique_ptr<Dense> residual, sum;
  a.x = x.data();
  if (p.residual) a.residual = (residual = std::make_unique<Dense>(p.residual, Dense::Read))->data();
  if (p.sum) a.sum = (sum = std::make_unique<Dense>(p.sum, Dense::Write))->data();
  const std::vector<float> gamma = float_values(p.gamma), beta = float_values(p.beta);
  a.gamma = gamma.data(), a.beta = p.beta ? beta.data() : nullptr;
  if (p.rstd) a.rstd = p.rstd.ptr<float>();
  std::vector<float> scale[2], zero[2];
  std::unique_ptr<Dense> y[2];
  for (int i = 0; i < 2; ++i) {
    const Branch& b = p.branch[i];
    if (!b.y) continue;
    scale[i] = float_values(b.scale), zero[i] = float_values(b.zero);
    if (b.zero && zero[i].size() != scale[i].size()) {
      if (zero[i].size() == 1) zero[i].resize(scale[i].size(), zero[i][0]);
      if (scale[i].size() == 1) scale[i].resize(zero[i].size(), scale[i][0]);
    }
    y[i] = std::make_unique<Dense>(b.y, Dense::Write);
    RowQuant& q = a.out[i];
    q.dynamic = b.dynamic, q.divide = b.divide, q.out = b.form, q.y = y[i]->data();
    q.scale = b.scale ? scale[i].data() : nullptr, q.zero = b.zero ? zero[i].data() : nullptr;
    q.step = scale[i].size() == 1 ? 0 : 1;
    if (b.dynamic) q.scales = b.scales.ptr<float>();
  }
  norm_quant(a);
  if (sum) sum->commit();
  for (auto& each : y) {
    if (each) each->commit();
  }
}

// Scales and zero points of hardware: fp16 has fp32 scales and int32 zero points, bf16 has both in bf16.
void check_static(const char* scale_name, const Tensor& scale, const char* zero_name, const Tensor& zero,
                  const Tensor& x, bool one) {
  require(is_float(scale.dtype), "%s must be float, got %s", scale_name, dtype_name(scale.dtype));
  check_row(scale_name, scale, x, one);
  if (!zero) return;
  require(is_float(zero.dtype) || zero.dtype == DType::I32 || zero.dtype == DType::I8,
          "%s must be int32, int8 or float, got %s", zero_name, dtype_name(zero.dtype));
  check_row(zero_name, zero, x, one);
}

Work plan_add_quant(const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, const aclTensor* scales1,
                    const aclTensor* scales2, const aclTensor* zero1, const aclTensor* zero2, const aclTensor* beta,
                    int64_t axis, double epsilon, bool divide, const aclTensor* y1, const aclTensor* y2,
                    const aclTensor* sum, const aclTensor* norm_out) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x1", x1), p.residual = in("x2", x2), p.gamma = in("gamma", gamma), p.beta = optional("beta", beta);
  p.sum = out("x", sum);
  plan_input(&p, "x1");
  require_like("x2", p.residual, p.x, "x1");
  require_like("x", p.sum, p.x, "x1");
  require(axis == -1, "axis is %lld, it must be -1", ll(axis));
  require(!optional("rms_norm_out", norm_out), "the normalised output is not available on the virtual NPU");
  p.args.epsilon = static_cast<float>(epsilon);
  p.args.half_steps = p.x.dtype == DType::F16;
  p.branch[0] = {in("scales1", scales1), optional("zero_points1", zero1), out("y1", y1), {}, false, divide};
  p.branch[0].form = quant_out("y1", p.branch[0].y, "x1", p.x);
  check_static("scales1", p.branch[0].scale, "zero_points1", p.branch[0].zero, p.x, true);
  if (const Tensor s2 = optional("scales2", scales2)) {
    p.branch[1] = {s2, optional("zero_points2", zero2), out("y2", y2), {}, false, divide};
    p.branch[1].form = quant_out("y2", p.branch[1].y, "x1", p.x);
    check_static("scales2", s2, "zero_points2", p.branch[1].zero, p.x, true);
  } else {
    require(!optional("zero_points2", zero2), "zero_points2 is given without scales2");
  }
  if (!p.x.numel()) return nullptr;
  const Tensor unused = p.branch[1].y ? Tensor() : optional_out("y2", y2);
  return [shared, unused] {
    run(*shared);
    poison(unused);
  };
}

Work plan_quant(const aclTensor* x, const aclTensor* gamma, const aclTensor* beta, const aclTensor* scale,
                const aclTensor* offset, double epsilon, bool divide, const aclTensor* y, const aclTensor* rstd) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x", x), p.gamma = in("gamma", gamma), p.beta = optional("beta", beta);
  plan_input(&p, "x");
  p.args.epsilon = static_cast<float>(epsilon);
  p.branch[0] = {in("scale", scale), optional("offset", offset), out("y", y), {}, false, divide};
  p.branch[0].form = quant_out("y", p.branch[0].y, "x", p.x);
  check_static("scale", p.branch[0].scale, "offset", p.branch[0].zero, p.x, true);
  if (const Tensor r = optional_out("rstd", rstd); r && r.numel() > 0) {
    require(r.dtype == DType::F32 && r.numel() == p.args.rows && r.contiguous(), "rstd must be float32, one a row");
    p.rstd = r;
  }
  if (!p.x.numel()) return nullptr;
  return [shared] { run(*shared); };
}

}  // namespace

ALOFT_ACLNN(AddRmsNormQuant,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, const aclTensor* scales1,
             const aclTensor* scales2, const aclTensor* zero1, const aclTensor* zero2, int64_t axis, double epsilon,
             bool divide, const aclTensor* y1, const aclTensor* y2, const aclTensor* sum),
            (x1, x2, gamma, scales1, scales2, zero1, zero2, axis, epsilon, divide, y1, y2, sum)) {
  return plan_add_quant(x1, x2, gamma, scales1, scales2, zero1, zero2, nullptr, axis, epsilon, divide, y1, y2, sum,
                        nullptr);
}

ALOFT_ACLNN(AddRmsNormQuantV2,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, const aclTensor* scales1,
             const aclTensor* scales2, const aclTensor* zero1, const aclTensor* zero2, const aclTensor* beta,
             int64_t axis, double epsilon, bool divide, const aclTensor* y1, const aclTensor* y2, const aclTensor* sum,
             const aclTensor* norm_out),
            (x1, x2, gamma, scales1, scales2, zero1, zero2, beta, axis, epsilon, divide, y1, y2, sum, norm_out)) {
  return plan_add_quant(x1, x2, gamma, scales1, scales2, zero1, zero2, beta, axis, epsilon, divide, y1, y2, sum,
                        norm_out);
}

ALOFT_ACLNN(RmsNormQuant,
            (const aclTensor* x, const aclTensor* gamma, const aclTensor* beta, const aclTensor* scale,
             const aclTensor* offset, double epsilon, const aclTensor* y),
            (x, gamma, beta, scale, offset, epsilon, y)) {
  return plan_quant(x, gamma, beta, scale, offset, epsilon, false, y, nullptr);
}

ALOFT_ACLNN(RmsNormQuantV3,
            (const aclTensor* x, const aclTensor* gamma, const aclTensor* scale, const aclTensor* offset,
             const aclTensor* beta, double epsilon, bool divide, bool want_rstd, const aclTensor* y,
             const aclTensor* rstd),
            (x, gamma, scale, offset, beta, epsilon, divide, want_rstd, y, rstd)) {
  return plan_quant(x, gamma, beta, scale, offset, epsilon, divide, y, want_rstd ? rstd : nullptr);
}

// By row. Without an output mask the second result is there when both smooth scales are.
ALOFT_ACLNN(AddRmsNormDynamicQuantV2,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, const aclTensor* smooth1,
             const aclTensor* smooth2, const aclTensor* beta, double epsilon, const aclBoolArray* mask,
             const aclTensor* y1, const aclTensor* y2, const aclTensor* sum, const aclTensor* scale1,
             const aclTensor* scale2),
            (x1, x2, gamma, smooth1, smooth2, beta, epsilon, mask, y1, y2, sum, scale1, scale2)) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x1", x1), p.residual = in("x2", x2), p.gamma = in("gamma", gamma), p.beta = optional("beta", beta);
  p.sum = out("x", sum);
  plan_input(&p, "x1");
  require(p.x.ndim >= 2, "x1 has the shape %s, it must have at least two dimensions", p.x.shape_text().c_str());
  require_like("x2", p.residual, p.x, "x1");
  require_like("x", p.sum, p.x, "x1");
  p.args.epsilon = static_cast<float>(epsilon);
  bool wanted[2] = {true, smooth1 && smooth2};
  if (mask) {
    require(mask->values.size() == 2 && (mask->values[0] || mask->values[1]),
            "output_mask must have two entries, one of them true");
    wanted[0] = mask->values[0], wanted[1] = mask->values[1];
    require((!smooth1 || wanted[0]) && (!smooth2 || wanted[1]), "a smooth_scale is given for an output that is masked");
  } else {
    require(smooth1 || !smooth2, "smooth_scale2 is given without smooth_scale1");
  }
  const aclTensor *smooth[] = {smooth1, smooth2}, *y[] = {y1, y2}, *scale[] = {scale1, scale2};
  constexpr const char* kSmooth[] = {"smooth_scale1", "smooth_scale2"};
  constexpr const char *kOut[] = {"y1", "y2"}, *kScale[] = {"scale1", "scale2"};
  for (int i = 0; i < 2; ++i) {
    if (!wanted[i]) continue;
    Branch& b = p.branch[i];
    b = {optional(kSmooth[i], smooth[i]), {}, out(kOut[i], y[i]), out(kScale[i], scale[i]), true, false};
    b.form = quant_out(kOut[i], b.y, "x1", p.x);
    if (b.scale) {
      require(is_float(b.scale.dtype), "%s must be float, got %s", kSmooth[i], dtype_name(b.scale.dtype));
      limit(b.scale.dtype == p.x.dtype, "%s is %s, it must have the dtype of x1 (%s)", kSmooth[i],
            dtype_name(b.scale.dtype), dtype_name(p.x.dtype));
      check_row(kSmooth[i], b.scale, p.x, false);
    }
    ALOFT_REQUIRE(b.scales.dtype == DType::F32 && b.scales.numel() == p.args.rows && b.scales.contiguous(),
                  "%s must be float32 with one value for each of the %lld rows, got %s", kScale[i], ll(p.args.rows),
                  b.scales.shape_text().c_str());
  }
  if (!p.x.numel()) return nullptr;
  return [shared] { run(*shared); };
}

}  // namespace aloft
