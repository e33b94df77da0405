// Weight-only quantisation of the aclnn door: 16-bit activations, int8 or packed int4 weights.
#include "kernels/quant_widen.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "opapi/quant_weight.h"

namespace aloft {
namespace {

struct Plan {
  Tensor x, scale, zero, out_scale, out_offset, bias, out;
  WeightView w;
  WidenMatmul call;
};

Tensor given(const char* name, const aclTensor* t) {
  const Tensor found = optional(name, t);
  return found && found.numel() > 0 ? found : Tensor();
}

// [1], [n], [1, n], or with groups [groups, n]; strided views (a transposed scale) are read as they are.
void check_scales(const char* name, const Tensor& t, Plan* p, int64_t groups) {
  const int64_t n = p->w.n;
  const bool one = t.numel() == 1 && groups == 1, row = groups == 1 && t.numel() == n && t.size(-1) == n && t.ndim <= 2;
  const bool table = t.ndim == 2 && t.size(0) == groups && t.size(1) == n;
  ALOFT_REQUIRE(one || row || table, "%s has the shape %s, it must be %s[%lld, %lld]", name, t.shape_text().c_str(),
                groups == 1 ? "[1], [n] or " : "", ll(groups), ll(n));
}

// Whether the kernel can read the scales (and offsets) where they are: a head has millions of them.
bool read_in_place(const Plan& p) {
  return p.scale.contiguous() &&
         (!p.zero || (p.zero.contiguous() && p.zero.dtype == p.scale.dtype && p.zero.numel() == p.scale.numel()));
}

void run(const Plan& p) {
  WidenMatmul c = p.call;
  Dense left(p.x, Dense::Read), result(p.out, Dense::Write);
  std::vector<float> scale, zero;
  const std::vector<float> bias = float_values(p.bias), out_scale = float_values(p.out_scale);
  c.scale_step = p.scale.numel() > 1 || c.n == 1;
  if (read_in_place(p)) {
    c.scale = p.scale.data, c.zero = p.zero ? p.zero.data : nullptr, c.scale_dtype = p.scale.dtype;
  } else {
    scale = float_values(p.scale), zero = float_values(p.zero);
    if (p.zero && zero.size() != scale.size()) {
      if (zero.size() == 1) zero.resize(scale.size(), zero[0]);
      if (scale.size() == 1) scale.resize(zero.size(), scale[0]), c.scale_step = 1;
    }
    c.scale = scale.data(), c.zero = p.zero ? zero.data() : nullptr;
  }
  c.bias = p.bias ? bias.data() : nullptr;
  std::vector<int32_t> offsets;
  if (p.out_scale) {
    for (const float v : float_values(p.out_offset)) offsets.push_back(static_cast<int32_t>(std::nearbyint(v)));
    if (!p.out_offset && p.out_scale.dtype != DType::F32) {
      Dense dense(p.out_scale, Dense::Read);
      for (int64_t i = 0; i < p.out_scale.numel(); ++i) {
        offsets.push_back(packed_offset(static_cast<int64_t*>(dense.data())[i]));
      }
    }
    offsets.resize(out_scale.size(), offsets.empty() ? 0 : offsets[0]);
    c.out_scale = out_scale.data(), c.out_offset = offsets.data(), c.out_scale_step = out_scale.size() > 1;
  }
  std::vector<unsigned char> gathered;
  if (p.w.gather) c.b.data = static_cast<const uint8_t*>(contiguous(p.w.gather, &gathered).data);
  c.a = left.data(), c.out = result.data();
  widen_matmul(c);
  result.commit();
}

Work plan(const aclTensor* x, const aclTensor* weight, const aclTensor* scale, const aclTensor* zero,
          const aclTensor* out_scale, const aclTensor* out_offset, const aclTensor* bias, int64_t group_size,
          int64_t inner_precise, const aclTensor* y) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x = in("x", x);
  const Tensor W = in("weight", weight, Layout::Any);
  p.w = weight_view("weight", W);
  p.scale = in("antiquant_scale", scale), p.zero = given("antiquant_offset", zero);
  p.out_scale = given("quant_scale", out_scale), p.out_offset = given("quant_offset", out_offset);
  p.bias = given("bias", bias), p.out = out("y", y);
  require(p.x.dtype == DType::F16 || p.x.dtype == DType::BF16, "x must be float16 or bfloat16, got %s",
          dtype_name(p.x.dtype));
  require(p.x.ndim == 2 && W.ndim == 2, "x %s and weight %s must have two dimensions", p.x.shape_text().c_str(),
          W.shape_text().c_str());
  WidenMatmul& c = p.call;
  c.m = p.x.size(0), c.k = p.x.size(1), c.n = p.w.n;
  ALOFT_REQUIRE(c.k == p.w.k, "x %s and weight %s cannot be multiplied: k is %lld and %lld", p.x.shape_text().c_str(),
                W.shape_text().c_str(), ll(c.k), ll(p.w.k));
  limit(c.m > 0 && c.n > 0 && c.k > 0, "x %s or weight %s is empty", p.x.shape_text().c_str(), W.shape_text().c_str());
  limit(c.k <= 65535 && c.n <= 65535, "k is %lld and n %lld, at most 65535", ll(c.k), ll(c.n));
  require(group_size == 0 || (group_size >= 32 && group_size % 32 == 0),
          "antiquant_group_size is %lld; 0, or a multiple of 32 below k", ll(group_size));
  limit(group_size < c.k || group_size == 0, "antiquant_group_size is %lld, k is %lld", ll(group_size), ll(c.k));
  const int64_t groups = group_size ? std::max<int64_t>(1, (c.k + group_size - 1) / group_size) : 1;
  require(is_float(p.scale.dtype), "antiquant_scale must have the dtype of x (%s), got %s", dtype_name(p.x.dtype),
          dtype_name(p.scale.dtype));
  limit(p.scale.dtype == p.x.dtype, "antiquant_scale is %s, it must have the dtype of x (%s)",
        dtype_name(p.scale.dtype), dtype_name(p.x.dtype));
  check_scales("antiquant_scale", p.scale, &p, groups);
  if (p.zero) {
    require(is_float(p.zero.dtype), "antiquant_offset must have the dtype of antiquant_scale (%s), got %s",
            dtype_name(p.scale.dtype), dtype_name(p.zero.dtype));
    limit(p.zero.dtype == p.scale.dtype, "antiquant_offset is %s, it must have the dtype of antiquant_scale (%s)",
          dtype_name(p.zero.dtype), dtype_name(p.scale.dtype));
    check_scales("antiquant_offset", p.zero, &p, groups);
  }
  if (p.bias) {
    require(is_float(p.bias.dtype), "bias must be float16 or float32, got %s", dtype_name(p.bias.dtype));
    const DType wanted = p.x.dtype == DType::BF16 ? DType::F32 : DType::F16;
    limit(p.bias.dtype == wanted, "bias is %s, it must be %s for %s x", dtype_name(p.bias.dtype), dtype_name(wanted),
          dtype_name(p.x.dtype));
    ALOFT_REQUIRE(p.bias.numel() == c.n && p.bias.size(-1) == c.n && p.bias.ndim <= 2,
                  "bias has the shape %s, it must be [%lld]", p.bias.shape_text().c_str(), ll(c.n));
  }
  if (p.out_scale) {
    require(p.out.dtype == DType::I8, "quant_scale goes with int8 output, got %s", dtype_name(p.out.dtype));
    require(p.out_scale.dtype == DType::F32 || p.out_scale.dtype == DType::I64 || p.out_scale.dtype == DType::U64,
            "quant_scale must be float32 or int64, got %s", dtype_name(p.out_scale.dtype));
    for (const Tensor* t : {&p.out_scale, &p.out_offset}) {
      if (*t)
        ALOFT_REQUIRE(t->numel() == 1 || t->numel() == c.n,
                      "quant_scale and quant_offset hold one or %lld values, got %s", ll(c.n), t->shape_text().c_str());
    }
  } else {
    require(!p.out_offset, "quant_offset is given without quant_scale");
    require(p.out.dtype == p.x.dtype, "y must have the dtype of x (%s), got %s", dtype_name(p.x.dtype),
            dtype_name(p.out.dtype));
  }
  require(inner_precise == 0 || inner_precise == 1, "inner_precise is %lld; valid: 0, 1", ll(inner_precise));
  ALOFT_REQUIRE(p.out.ndim == 2 && p.out.size(0) == c.m && p.out.size(1) == c.n,
                "y has the shape %s, the product [%lld, %lld]", p.out.shape_text().c_str(), ll(c.m), ll(c.n));
  c.a_dtype = p.x.dtype, c.a_stride = c.k, c.b = p.w.weight, c.group = group_size;
  c.out_dtype = p.out.dtype, c.out_stride = c.n;
  if (!p.out.numel()) return nullptr;
  return [shared] { run(*shared); };
}

}  // namespace

ALOFT_ACLNN(WeightQuantBatchMatmulV2,
            (const aclTensor* x, const aclTensor* weight, const aclTensor* scale, const aclTensor* zero,
             const aclTensor* out_scale, const aclTensor* out_offset, const aclTensor* bias, int32_t group_size,
             const aclTensor* y),
            (x, weight, scale, zero, out_scale, out_offset, bias, group_size, y)) {
  return plan(x, weight, scale, zero, out_scale, out_offset, bias, group_size, 0, y);
}

ALOFT_ACLNN(WeightQuantBatchMatmulNz,
            (const aclTensor* x, const aclTensor* weight, const aclTensor* scale, const aclTensor* zero,
             const aclTensor* out_scale, const aclTensor* out_offset, const aclTensor* bias, int32_t group_size,
             const aclTensor* y),
            (x, weight, scale, zero, out_scale, out_offset, bias, group_size, y)) {
  return plan(x, weight, scale, zero, out_scale, out_offset, bias, group_size, 0, y);
}

ALOFT_ACLNN(WeightQuantBatchMatmulV3,
            (const aclTensor* x, const aclTensor* weight, const aclTensor* scale, const aclTensor* zero,
             const aclTensor* out_scale, const aclTensor* out_offset, const aclTensor* bias, int32_t group_size,
             int32_t inner_precise, const aclTensor* y),
            (x, weight, scale, zero, out_scale, out_offset, bias, group_size, inner_precise, y)) {
  return plan(x, weight, scale, zero, out_scale, out_offset, bias, group_size, inner_precise, y);
}

}  // namespace aloft
