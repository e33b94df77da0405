// Products of quantised matrices of the aclnn door: int8 x int8, int8 x int4, int4 x int4.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "opapi/quant_weight.h"

namespace aloft {
namespace {

struct Plan {
  Tensor x1, scale, token_scale, bias, zero, out_offset, out;
  WeightView w;
  QuantMatmul call;
  int batch_dims = 0;
  int64_t batch[kMaxDims] = {}, left_stride[kMaxDims] = {}, right_stride[kMaxDims] = {};
  bool packed_left = false;
};

// An optional operand; the adapter passes an empty tensor for some that are not there.
Tensor given(const char* name, const aclTensor* t) {
  const Tensor found = optional(name, t);
  return found && found.numel() > 0 ? found : Tensor();
}

bool packed_scale_type(DType t) { return t == DType::I64 || t == DType::U64; }

void check_types(const Plan& p, bool int4_left) {
  const DType s = p.scale.dtype, o = p.out.dtype, b = p.bias ? p.bias.dtype : DType::Undefined;
  require(s == DType::F32 || s == DType::BF16 || packed_scale_type(s),
          "scale must be float32, bfloat16, int64 or uint64, got %s", dtype_name(s));
  require(o == DType::I8 || o == DType::F16 || o == DType::BF16 || o == DType::I32,
          "the output must be int8, float16, bfloat16 or int32, got %s", dtype_name(o));
  require(!p.token_scale || p.token_scale.dtype == DType::F32, "pertoken_scale must be float32, got %s",
          p.token_scale ? dtype_name(p.token_scale.dtype) : "");
  require(b == DType::Undefined || b == DType::I32 || is_float(b),
          "bias must be int32, bfloat16, float16 or float32, got %s", dtype_name(b));
  if (p.out_offset) {
    require(o == DType::I8, "offset goes with int8 output, got %s", dtype_name(o));
    limit(p.out_offset.dtype == DType::F32, "offset must be float32, got %s", dtype_name(p.out_offset.dtype));
  }
  const bool integer_bias = b == DType::Undefined || b == DType::I32;
  bool ok = true;
  if (p.w.weight.bits == 4 && !int4_left) {
    ok = packed_scale_type(s) && p.token_scale && !p.bias && (o == DType::F16 || o == DType::BF16);
    limit(ok,
          "int8 x int4 takes an int64 scale, pertoken_scale, no bias and float16 or bfloat16 output; got scale %s, %s "
          "pertoken_scale, %s bias, output %s",
          dtype_name(s), p.token_scale ? "with" : "no", p.bias ? "with" : "no", dtype_name(o));
    return;
  }
  if (o == DType::I8) ok = packed_scale_type(s) && integer_bias && !p.token_scale;
  if (o == DType::I32) ok = (s == DType::F32 || s == DType::BF16) && integer_bias && !p.token_scale;
  if (o == DType::BF16) ok = s == DType::F32 || s == DType::BF16;
  if (o == DType::F16) {
    ok = p.token_scale ? s == DType::F32 && b != DType::BF16 : packed_scale_type(s) && integer_bias;
  }
  limit(ok, "scale %s, bias %s, %s pertoken_scale and output %s do not go together on hardware", dtype_name(s),
        p.bias ? dtype_name(b) : "none", p.token_scale ? "with" : "no", dtype_name(o));
}

// Batches of the two operands broadcast; expected: the shape of the output.
void plan_batch(Plan* p, int64_t m) {
  const int left = p->x1.ndim - 2, dims = std::max(left, p->w.batch_dims);
  p->batch_dims = dims;
  Tensor expected;
  for (int d = 0; d < dims; ++d) {
    const int l = d - (dims - left), r = d - (dims - p->w.batch_dims);
    const int64_t ln = l < 0 ? 1 : p->x1.size(l), rn = r < 0 ? 1 : p->w.batch[r];
    require(ln == rn || ln == 1 || rn == 1, "the batch dimensions of x1 %s and x2 do not broadcast",
            p->x1.shape_text().c_str());
    p->batch[d] = expected.sizes[expected.ndim++] = std::max(ln, rn);
    p->left_stride[d] = ln == 1 ? 0 : 1;
    p->right_stride[d] = rn == 1 ? 0 : p->w.batch_stride[r];
  }
  int64_t rows = m;  // of x1, dense: strides of its batches
  for (int d = dims - 1; d >= 0; --d) {
    const int l = d - (dims - left);
    if (l < 0) continue;
    p->left_stride[d] *= rows;
    rows *= p->x1.size(l);
  }
  expected.sizes[expected.ndim++] = m;
  expected.sizes[expected.ndim++] = p->w.n;
  ALOFT_REQUIRE(p->out.same_shape(expected), "the output has the shape %s, the product %s", p->out.shape_text().c_str(),
                expected.shape_text().c_str());
}

void plan_scales(Plan* p, int64_t group_size) {
  QuantMatmul& c = p->call;
  const Tensor& s = p->scale;
  const int64_t n = p->w.n, k = p->w.k;
  const int64_t group_k = group_size & 0xffff, group_n = group_size >> 16 & 0xffff, group_m = group_size >> 32 & 0xffff;
  const bool grouped = s.ndim == 2 && (s.size(0) > 1 || group_k > 0 || p->zero);
  if (!grouped) {
    ALOFT_REQUIRE(s.numel() == 1 || (s.numel() == n && s.size(-1) == n),
                  "scale has the shape %s, it must be [1] or [%lld]", s.shape_text().c_str(), ll(n));
    require(group_k == 0 || s.numel() == n, "group_sizes is given, scale %s has no groups", s.shape_text().c_str());
    require(!p->zero, "offset of a group goes with scales [groups, n]");
    c.scale_step = s.numel() != 1 || n == 1;
    return;
  }
  const int64_t groups = s.size(0);
  c.group = group_k ? group_k : (k + groups - 1) / groups;
  ALOFT_REQUIRE(s.size(1) == n && groups == (k + c.group - 1) / c.group,
                "scale has the shape %s, groups of %lld values of k = %lld take [%lld, %lld]", s.shape_text().c_str(),
                ll(c.group), ll(k), ll((k + c.group - 1) / c.group), ll(n));
  require(c.group % 32 == 0, "groups of %lld values of k; the virtual NPU takes multiples of 32", ll(c.group));
  require(group_m <= 1 && group_n <= 1, "group_sizes [%lld, %lld, %lld]: only k is grouped", ll(group_m), ll(group_n),
          ll(group_k));
  limit(c.group == 256 && k % 256 == 0, "groups of %lld values of k = %lld; the operator takes 256, k a multiple of it",
        ll(c.group), ll(k));
  require(!p->bias && !p->out_offset && p->out.dtype != DType::I8 && p->out.dtype != DType::I32,
          "scales by group take no bias and give float16 or bfloat16");
  if (p->zero) {
    ALOFT_REQUIRE(p->zero.same_shape(s), "offset has the shape %s, it must be that of scale %s",
                  p->zero.shape_text().c_str(), s.shape_text().c_str());
  }
}

void run(const Plan& p) {
  QuantMatmul c = p.call;
  Dense left(p.x1, Dense::Read), result(p.out, Dense::Write);
  const bool in_place = p.scale.dtype == DType::F32 && p.scale.contiguous();
  const std::vector<float> scale = in_place ? std::vector<float>() : float_values(p.scale);
  const std::vector<float> tokens = float_values(p.token_scale), zero = float_values(p.zero);
  c.scale = in_place ? p.scale.ptr<float>() : scale.data();
  c.row_scale = p.token_scale ? tokens.data() : nullptr;
  c.zero = p.zero ? zero.data() : nullptr;
  std::vector<float> bias;
  std::vector<int32_t> integers;
  int64_t bias_step = 0;  // between batches
  if (p.bias) {
    if (p.bias.ndim == 3 && p.bias.size(0) > 1) bias_step = c.n;
    Dense dense(p.bias, Dense::Read);
    if (p.bias.dtype == DType::I32) {
      integers.assign(static_cast<int32_t*>(dense.data()), static_cast<int32_t*>(dense.data()) + p.bias.numel());
    } else {
      bias = float_values(p.bias);
    }
  }
  std::vector<int32_t> offsets;
  if (p.out.dtype == DType::I8) {
    if (p.out_offset) {
      for (const float v : float_values(p.out_offset)) {
        offsets.push_back(static_cast<int32_t>(std::nearbyint(std::min(255.f, std::max(-256.f, v)))));
      }
    } else if (packed_scale_type(p.scale.dtype)) {
      Dense dense(p.scale, Dense::Read);
      for (int64_t i = 0; i < p.scale.numel(); ++i) {
        offsets.push_back(packed_offset(static_cast<int64_t*>(dense.data())[i]));
      }
    }
    c.out_offset = offsets.empty() ? nullptr : offsets.data();
    c.out_offset_step = offsets.size() > 1;
  }
  std::vector<int8_t> unpacked;
  const int8_t* a = static_cast<const int8_t*>(left.data());
  int64_t rows = c.m;
  for (int d = 0; d + 2 < p.x1.ndim; ++d) rows *= p.x1.size(d);
  if (p.packed_left) {
    unpacked.resize(static_cast<size_t>(rows * c.k));
    unpack_int4(static_cast<const uint8_t*>(left.data()), rows * c.k, unpacked.data());
    a = unpacked.data();
  }
  std::vector<unsigned char> gathered;
  if (p.w.gather) c.b.data = static_cast<const uint8_t*>(contiguous(p.w.gather, &gathered).data);
  const uint8_t* weights = c.b.data;
  int64_t products = 1;
  for (int d = 0; d < p.batch_dims; ++d) products *= p.batch[d];
  const int64_t out_bytes = c.m * c.n * static_cast<int64_t>(dtype_size(p.out.dtype));
  for (int64_t i = 0; i < products; ++i) {
    int64_t row = 0, at = 0, rest = i;
    for (int d = p.batch_dims - 1; d >= 0; --d) {
      const int64_t index = rest % p.batch[d];
      rest /= p.batch[d];
      row += index * p.left_stride[d];
      at += index * p.right_stride[d];
    }
    c.a = a + row * c.k;
    c.b.data = weights + at;
    c.out = static_cast<char*>(result.data()) + i * out_bytes;
    c.bias = bias.empty() ? nullptr : bias.data() + i * bias_step;
    c.integer_bias = integers.empty() ? nullptr : integers.data() + i * bias_step;
    quant_matmul(c);
  }
  result.commit();
}

Work plan(const aclTensor* x1, const aclTensor* x2, const aclTensor* x1_scale, const aclTensor* x2_scale,
          const aclTensor* y_scale, const aclTensor* x1_offset, const aclTensor* x2_offset, const aclTensor* y_offset,
          const aclTensor* bias, bool transpose1, bool transpose2, int64_t group_size, const aclTensor* out_tensor) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  p.x1 = in("x1", x1);
  const Tensor x2_view = in("x2", x2, Layout::Any);
  p.w = weight_view("x2", x2_view);
  p.scale = in("scale", x2_scale);
  p.token_scale = given("pertoken_scale", x1_scale);
  p.bias = given("bias", bias);
  const Tensor offset = given("offset", x2_offset);
  p.out = out("out", out_tensor);
  require(!given("y_scale", y_scale) && !given("x1_offset", x1_offset),
          "y_scale and x1_offset belong to types of Ascend 950");
  require(!given("y_offset", y_offset),
          "y_offset is not available on the virtual NPU: int8 x int4 is exact without it");
  require(!transpose1 && !transpose2, "the transpose flags are not available: pass transposed views");
  const bool int4_left = p.x1.dtype == DType::I32 || p.x1.dtype == DType::I4;
  require(p.x1.dtype == DType::I8 || int4_left, "x1 must be int8, or int4 packed in int32, got %s",
          dtype_name(p.x1.dtype));
  require(!int4_left || p.w.weight.bits == 4, "x1 is int4, x2 must be packed int4 too, got %s",
          dtype_name(x2_view.dtype));
  require(p.x1.ndim >= 2 && p.x1.ndim <= 6, "x1 has the shape %s, it must have 2 to 6 dimensions",
          p.x1.shape_text().c_str());
  require(!int4_left || p.x1.contiguous(), "x1 is packed int4, it must be contiguous");
  p.packed_left = int4_left;
  QuantMatmul& c = p.call;
  c.m = p.x1.size(-2), c.k = p.x1.size(-1) * (p.x1.dtype == DType::I32 ? 8 : 1), c.n = p.w.n;
  ALOFT_REQUIRE(c.k == p.w.k, "x1 %s and x2 %s cannot be multiplied: k is %lld and %lld", p.x1.shape_text().c_str(),
                x2_view.shape_text().c_str(), ll(c.k), ll(p.w.k));
  limit(c.m > 0 && c.n > 0 && c.k > 0, "x1 %s or x2 %s is empty", p.x1.shape_text().c_str(),
        x2_view.shape_text().c_str());
  require(c.k <= 131072, "k is %lld, exact sums in 32 bits end at 131072", ll(c.k));
  limit(c.k <= 65535 && x2_view.size(-1) <= 65535, "k is %lld and the last dimension of x2 %lld, at most 65535",
        ll(c.k), ll(x2_view.size(-1)));
  if (offset && offset.ndim == 2) {
    p.zero = offset;
    require(int4_left, "offset [groups, n] goes with int4 x int4");
  } else {
    p.out_offset = offset;
    if (offset) {
      ALOFT_REQUIRE(offset.ndim <= 1 && (offset.numel() == 1 || offset.numel() == c.n),
                    "offset has the shape %s, it must be [1] or [%lld]", offset.shape_text().c_str(), ll(c.n));
    }
  }
  plan_batch(&p, c.m);
  check_types(p, int4_left);
  if (p.token_scale) {
    ALOFT_REQUIRE(p.token_scale.numel() == c.m, "pertoken_scale has the shape %s, it must be [%lld]",
                  p.token_scale.shape_text().c_str(), ll(c.m));
  }
  if (p.bias) {
    const Tensor& b = p.bias;
    const bool batched = b.ndim == 3 && p.out.ndim == 3 && b.size(1) == 1 && b.size(0) == p.out.size(0);
    ALOFT_REQUIRE(b.size(-1) == c.n && (b.ndim == 1 || batched),
                  "bias has the shape %s, it must be [%lld], or [batch, 1, %lld] for three dimensions",
                  b.shape_text().c_str(), ll(c.n), ll(c.n));
  }
  plan_scales(&p, group_size);
  c.a_stride = c.k, c.b = p.w.weight, c.out_dtype = p.out.dtype, c.out_stride = c.n;
  if (!p.out.numel()) return nullptr;
  return [shared] { run(*shared); };
}

}  // namespace

#define ALOFT_QUANT_MATMUL_PARAMETERS                                                                              \
  const aclTensor *x1, const aclTensor *x2, const aclTensor *x1_scale, const aclTensor *x2_scale,                  \
      const aclTensor *y_scale, const aclTensor *x1_offset, const aclTensor *x2_offset, const aclTensor *y_offset, \
      const aclTensor *bias, bool transpose1, bool transpose2, int64_t group_size, const aclTensor *out_tensor
#define ALOFT_QUANT_MATMUL_NAMES                                                                                 \
  x1, x2, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, bias, transpose1, transpose2, group_size, \
      out_tensor

ALOFT_ACLNN(QuantMatmulV5, (ALOFT_QUANT_MATMUL_PARAMETERS), (ALOFT_QUANT_MATMUL_NAMES)) {
  return plan(ALOFT_QUANT_MATMUL_NAMES);
}

ALOFT_ACLNN(QuantMatmulWeightNz, (ALOFT_QUANT_MATMUL_PARAMETERS), (ALOFT_QUANT_MATMUL_NAMES)) {
  const Tensor w = in("x2", x2, Layout::Any);
  require(w.format == Format::FractalNZ, "x2 must be FRACTAL_NZ, got %s", format_name(w.format));
  return plan(ALOFT_QUANT_MATMUL_NAMES);
}

namespace {

// bits 0-31: scale with 13 bits of its mantissa cleared (rounded half to even before with round_mode 1); bit 46;
// bits 37-45: the offset.
int64_t pack_parameter(float scale, const float* offset, int64_t round_mode) {
  uint32_t bits;
  std::memcpy(&bits, &scale, 4);
  if (round_mode) bits += 0xfff + ((bits >> 13) & 1);
  uint64_t packed = (bits & 0xffffe000u) | uint64_t{1} << 46;
  if (offset) {
    const int64_t whole = static_cast<int64_t>(std::nearbyint(std::min(255.f, std::max(-256.f, *offset))));
    packed |= (static_cast<uint64_t>(whole) & 0x1ff) << 37;
  }
  return static_cast<int64_t>(packed);
}

Work plan_parameter(const aclTensor* scale, const aclTensor* offset, int64_t round_mode, const aclTensor* y) {
  const Tensor S = in("scale", scale), O = given("offset", offset), Y = aloft::out("out", y);
  require(S.dtype == DType::F32 && (!O || O.dtype == DType::F32), "scale and offset must be float32, got %s%s%s",
          dtype_name(S.dtype), O ? " and " : "", O ? dtype_name(O.dtype) : "");
  require(round_mode == 0 || round_mode == 1, "round_mode is %lld; valid: 0, 1", ll(round_mode));
  require(packed_scale_type(Y.dtype), "out must be int64, got %s", dtype_name(Y.dtype));
  const int64_t n = O ? std::max(S.numel(), O.numel()) : S.numel();
  require(Y.numel() == n && (S.numel() == 1 || S.numel() == n) && (!O || O.numel() == 1 || O.numel() == n),
          "scale has %lld values, offset %lld, out %lld; one, or as many as the longer", ll(S.numel()),
          ll(O ? O.numel() : 0), ll(Y.numel()));
  limit(S.ndim <= 2 && (!O || O.ndim <= 2), "scale and offset have one dimension");
  if (!n) return nullptr;
  return [=] {
    Dense to(Y, Dense::Write);
    const std::vector<float> s = float_values(S), o = float_values(O);
    for (int64_t i = 0; i < n; ++i) {
      const float* zero = O ? &o[O.numel() == 1 ? 0 : static_cast<size_t>(i)] : nullptr;
      static_cast<int64_t*>(to.data())[i] =
          pack_parameter(s[S.numel() == 1 ? 0 : static_cast<size_t>(i)], zero, round_mode);
    }
    to.commit();
  };
}

}  // namespace

ALOFT_ACLNN(TransQuantParamV2, (const aclTensor* scale, const aclTensor* offset, const aclTensor* y),
            (scale, offset, y)) {
  return plan_parameter(scale, offset, 0, y);
}

ALOFT_ACLNN(TransQuantParamV3,
            (const aclTensor* scale, const aclTensor* offset, int64_t round_mode, const aclTensor* y),
            (scale, offset, round_mode, y)) {
  return plan_parameter(scale, offset, round_mode, y);
}

}  // namespace aloft
