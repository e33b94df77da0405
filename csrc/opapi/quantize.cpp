// Quantisers and dequantisers of the aclnn door.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "kernels/parallel.h"
#include "opapi/quant.h"

namespace aloft {
namespace {

void check_float(const char* name, const Tensor& t) {
  require(is_float(t.dtype), "%s must be float16, bfloat16 or float32, got %s", name, dtype_name(t.dtype));
}

// Scales [1], one a channel of `axis`, or of x's rank with ones elsewhere.
void check_channels(const char* name, const Tensor& t, const Tensor& x, int axis, bool* single) {
  const int64_t n = x.size(axis);
  bool ok = t.numel() == 1 || (t.ndim == 1 && t.size(0) == n);
  if (!ok && t.ndim == x.ndim) {
    ok = t.size(axis) == n;
    for (int d = 0; d < t.ndim; ++d) ok = ok && (d == axis || t.size(d) == 1);
  }
  ALOFT_REQUIRE(ok, "%s has the shape %s, it must be [1] or [%lld], one a channel of dimension %d of x %s", name,
                t.shape_text().c_str(), ll(n), axis, x.shape_text().c_str());
  *single = t.numel() == 1 && n != 1;
}

Work plan_static(const Tensor& X, const Tensor& S, const Tensor& Z, const Tensor& Y, int axis, bool divide,
                 QuantOut form) {
  bool one_scale = false, one_zero = false;
  check_channels("scale", S, X, axis, &one_scale);
  if (Z) check_channels("offset", Z, X, axis, &one_zero);
  if (!X.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write);
    std::vector<float> scale = float_values(S), zero = float_values(Z);
    if (Z && one_scale != one_zero) {  // one index serves both
      if (one_scale) scale.resize(zero.size(), scale[0]);
      if (one_zero) zero.resize(scale.size(), zero[0]);
    }
    StaticQuantArgs a;
    a.dtype = X.dtype, a.x = from.data(), a.divide = divide, a.out = form, a.y = to.data();
    a.scale = scale.data(), a.offset = Z ? zero.data() : nullptr;
    const Split s = split_at("x", X, axis);
    if (axis == X.ndim - 1 || form == QuantOut::I4) {
      a.cols = X.size(-1), a.rows = X.numel() / a.cols;
      if (axis == X.ndim - 1) a.col_step = scale.size() > 1;
      if (axis != X.ndim - 1 && scale.size() > 1) {
        require(s.inner == a.cols, "packed int4 takes the last or the second-last dimension as axis");
        a.row_step = 1, a.channels = s.n;
      }
    } else {
      a.cols = s.inner, a.rows = s.outer * s.n;
      if (scale.size() > 1) a.row_step = 1, a.channels = s.n;
    }
    quantize(a);
    to.commit();
  };
}

Work plan_ascend_quant(const aclTensor* x, const aclTensor* scale, const aclTensor* offset, bool sqrt_mode,
                       const char* round_mode, int32_t axis, const aclTensor* y) {
  const Tensor X = in("x", x), S = in("scale", scale), Z = optional("offset", offset), Y = out("y", y);
  check_float("x", X);
  require(X.ndim >= 1, "x has no dimensions");
  require(S.dtype == X.dtype || S.dtype == DType::F32, "scale must have the dtype of x (%s), got %s",
          dtype_name(X.dtype), dtype_name(S.dtype));
  limit(S.dtype == X.dtype, "scale is %s, it must have the dtype of x (%s)", dtype_name(S.dtype), dtype_name(X.dtype));
  if (Z) {
    require(is_float(Z.dtype), "offset must have the dtype of scale (%s), got %s", dtype_name(S.dtype),
            dtype_name(Z.dtype));
    limit(Z.dtype == S.dtype, "offset is %s, it must have the dtype of scale (%s)", dtype_name(Z.dtype),
          dtype_name(S.dtype));
  }
  require(!sqrt_mode, "sqrt_mode is not available on the virtual NPU");
  require(round_mode && !std::strcmp(round_mode, "round"), "round_mode is \"%s\"; the virtual NPU has \"round\"",
          round_mode ? round_mode : "");
  require(axis == -1 || axis == -2, "axis is %d, the operator takes -1 and -2", axis);
  require(axis == -1 || X.ndim >= 2, "axis -2 needs two dimensions, x has the shape %s", X.shape_text().c_str());
  return plan_static(X, S, Z, Y, X.ndim + axis, false, quant_out("y", Y, "x", X));
}

// Smooth scales [K], or [E, K] with E ends of row groups.
void check_smooth(const Tensor& X, const Tensor& M, const Tensor& G, int64_t cols) {
  if (G) require(M.present, "group_index is given without smooth_scales");
  if (!M) return;
  limit(M.dtype == X.dtype, "smooth_scales is %s, it must have the dtype of x (%s)", dtype_name(M.dtype),
        dtype_name(X.dtype));
  check_float("smooth_scales", M);
  if (!G) {
    ALOFT_REQUIRE(M.ndim == 1 && M.size(0) == cols, "smooth_scales has the shape %s, it must be [%lld]",
                  M.shape_text().c_str(), ll(cols));
    return;
  }
  require(G.dtype == DType::I32, "group_index must be int32, got %s", dtype_name(G.dtype));
  ALOFT_REQUIRE(G.ndim == 1 && M.ndim == 2 && M.size(0) == G.size(0) && M.size(1) == cols && G.size(0) > 0,
                "smooth_scales %s and group_index %s must be [E, %lld] and [E]", M.shape_text().c_str(),
                G.shape_text().c_str(), ll(cols));
  limit(G.size(0) <= 1024, "%lld groups, at most 1024", ll(G.size(0)));
}

// quant_mode pertensor and perchannel: one scale for all, or one a column over the second-last dimension.
void quantize_across(const Tensor& X, const void* x, const float* smooth, bool channel, bool symmetric, QuantOut form,
                     void* y, float* scale, float* offset) {
  const int64_t cols = X.size(-1), rows = channel ? X.size(-2) : X.numel() / cols;
  const int64_t batches = X.numel() / cols / std::max<int64_t>(1, rows), count = channel ? cols : 1;
  const float high = form == QuantOut::I4 ? 7.f : 127.f, span = form == QuantOut::I4 ? 15.f : 255.f;
  Tensor flat = X;
  flat.data = const_cast<void*>(x);
  flat.ndim = 1, flat.sizes[0] = X.numel(), flat.strides[0] = 1;
  std::vector<float> v = float_values(flat);
  if (smooth) {
    for (size_t i = 0; i < v.size(); ++i) v[i] *= smooth[i % static_cast<size_t>(cols)];
  }
  for (int64_t b = 0; b < batches; ++b) {
    const float* part = v.data() + b * rows * cols;
    std::vector<float> factor(static_cast<size_t>(count)), zero(static_cast<size_t>(count), 0.f);
    for (int64_t c = 0; c < count; ++c) {
      float low = __builtin_inff(), top = -low, m = 0;
      for (int64_t i = c; i < rows * cols; i += count) {
        low = std::min(low, part[i]), top = std::max(top, part[i]), m = std::max(m, std::fabs(part[i]));
      }
      float& s = scale[b * count + c];
      if (symmetric) {
        s = m / high;
        factor[static_cast<size_t>(c)] = m > 0 ? high / m : 0;
      } else {
        s = std::max((top - low) / span, 1e-12f);
        zero[static_cast<size_t>(c)] = offset[b * count + c] = high - top / s;
        factor[static_cast<size_t>(c)] = s;
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      char* to = static_cast<char*>(y) + (b * rows + r) * quant_row_bytes(form, cols);
      quantize_row_static(part + r * cols, cols, factor.data(), zero.data(), channel, !symmetric, form, to);
    }
  }
}

Work plan_dynamic(const aclTensor* x, const aclTensor* smooth, const aclTensor* group, bool symmetric, const char* mode,
                  const aclTensor* y, const aclTensor* scale, const aclTensor* offset) {
  const Tensor X = in("x", x), M = optional("smooth_scales", smooth), G = optional("group_index", group);
  const Tensor Y = out("y", y), S = out("scale", scale), Z = optional_out("offset", offset);
  check_float("x", X);
  limit(X.dtype != DType::F32, "x is float32, the operator takes float16 and bfloat16");
  require(X.ndim >= 2, "x has the shape %s, it must have at least two dimensions", X.shape_text().c_str());
  const std::string how = mode ? mode : "pertoken";
  const bool token = how.rfind("pertoken", 0) == 0, tensor = how.rfind("pertensor", 0) == 0;
  const bool channel = how.rfind("perchannel", 0) == 0;
  require(token || tensor || channel, "quant_mode is \"%s\"; valid: pertoken, pertensor, perchannel", how.c_str());
  limit(token, "quant_mode %s exists on Ascend 950 only", how.c_str());
  require(token || !G, "quant_mode %s takes no group_index", how.c_str());
  const QuantOut form = quant_out("y", Y, "x", X);
  const int64_t cols = X.size(-1), rows = cols ? X.numel() / cols : 0;
  check_smooth(X, M, G, cols);
  const int64_t scales = token ? rows : tensor ? 1 : rows / std::max<int64_t>(1, X.size(-2)) * cols;
  for (const Tensor* t : {&S, &Z}) {
    if (t == &Z && symmetric) continue;
    const char* name = t == &S ? "scale" : "offset";
    require(t->present, "%s is missing", name);
    ALOFT_REQUIRE(t->dtype == DType::F32 && t->numel() == scales && t->contiguous(),
                  "%s must be float32 and hold %lld values, got %s %s", name, ll(scales), dtype_name(t->dtype),
                  t->shape_text().c_str());
  }
  if (!X.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write);
    const std::vector<float> factors = float_values(M);
    std::vector<int32_t> ends;
    if (G) {
      int32_t before = 0;
      for (int64_t i = 0; i < G.size(0); ++i) {
        const int32_t end = G.ptr<int32_t>()[i * G.stride(0)];
        require(end >= before && end <= rows, "group_index[%lld] is %d: ends of row groups ascend up to %lld", ll(i),
                end, ll(rows));
        ends.push_back(before = end);
      }
      require(before == rows, "the last of group_index is %d, x has %lld rows", before, ll(rows));
    }
    if (!token) {
      quantize_across(X, from.data(), M ? factors.data() : nullptr, channel, symmetric, form, to.data(), S.ptr<float>(),
                      symmetric ? nullptr : Z.ptr<float>());
    } else {
      DynamicQuantArgs a;
      a.rows = rows, a.cols = cols, a.dtype = X.dtype, a.x = from.data(), a.out = form, a.y = to.data();
      a.smooth = M ? factors.data() : nullptr;
      if (G) a.group_end = ends.data(), a.groups = static_cast<int64_t>(ends.size());
      a.scale = S.ptr<float>(), a.offset = symmetric ? nullptr : Z.ptr<float>();
      dynamic_quant(a);
    }
    to.commit();
  };
}

}  // namespace

// y = rint(x * scale + offset).
ALOFT_ACLNN(AscendQuant,
            (const aclTensor* x, const aclTensor* scale, const aclTensor* offset, bool sqrt_mode,
             const char* round_mode, int32_t dst_type, const aclTensor* y),
            (x, scale, offset, sqrt_mode, round_mode, dst_type, y)) {
  return plan_ascend_quant(x, scale, offset, sqrt_mode, round_mode, -1, y);
}

ALOFT_ACLNN(AscendQuantV3,
            (const aclTensor* x, const aclTensor* scale, const aclTensor* offset, bool sqrt_mode,
             const char* round_mode, int32_t dst_type, int32_t axis, const aclTensor* y),
            (x, scale, offset, sqrt_mode, round_mode, dst_type, axis, y)) {
  return plan_ascend_quant(x, scale, offset, sqrt_mode, round_mode, axis, y);
}

// out = rint(x / scales + zero_points).
ALOFT_ACLNN(Quantize,
            (const aclTensor* x, const aclTensor* scales, const aclTensor* zero_points, int32_t dtype, int32_t axis,
             const aclTensor* out_tensor),
            (x, scales, zero_points, dtype, axis, out_tensor)) {
  const Tensor X = in("x", x), S = in("scales", scales), Z = optional("zero_points", zero_points);
  const Tensor Y = out("out", out_tensor);
  check_float("x", X);
  check_float("scales", S);
  require(X.ndim >= 1, "x has no dimensions");
  require(axis >= -X.ndim && axis < X.ndim, "axis is %d, x has %d dimensions", axis, X.ndim);
  require(Y.dtype == DType::I8 || Y.dtype == DType::U8 || Y.dtype == DType::I32,
          "out must be int8, uint8 or int32, got %s", dtype_name(Y.dtype));
  ALOFT_REQUIRE(Y.same_shape(X), "out must have the shape of x %s, got %s", X.shape_text().c_str(),
                Y.shape_text().c_str());
  limit(X.ndim > axis && S.ndim == 1, "scales has the shape %s, it must have one dimension", S.shape_text().c_str());
  const QuantOut form = Y.dtype == DType::I8 ? QuantOut::I8 : Y.dtype == DType::U8 ? QuantOut::U8 : QuantOut::I32;
  return plan_static(X, S, Z, Y, axis < 0 ? axis + X.ndim : axis, true, form);
}

ALOFT_ACLNN(DynamicQuant, (const aclTensor* x, const aclTensor* smooth, const aclTensor* y, const aclTensor* scale),
            (x, smooth, y, scale)) {
  return plan_dynamic(x, smooth, nullptr, true, nullptr, y, scale, nullptr);
}

// Asymmetric when an offset is wanted.
ALOFT_ACLNN(DynamicQuantV2,
            (const aclTensor* x, const aclTensor* smooth, const aclTensor* group, int32_t dst_type, const aclTensor* y,
             const aclTensor* scale, const aclTensor* offset),
            (x, smooth, group, dst_type, y, scale, offset)) {
  return plan_dynamic(x, smooth, group, !offset, nullptr, y, scale, offset);
}

ALOFT_ACLNN(DynamicQuantV3,
            (const aclTensor* x, const aclTensor* smooth, const aclTensor* group, int32_t dst_type, bool symmetric,
             const char* mode, const aclTensor* y, const aclTensor* scale, const aclTensor* offset),
            (x, smooth, group, dst_type, symmetric, mode, y, scale, offset)) {
  return plan_dynamic(x, smooth, group, symmetric, mode, y, scale, offset);
}

ALOFT_ACLNN(DynamicQuantV4,
            (const aclTensor* x, const aclTensor* smooth, const aclTensor* group, int32_t dst_type, bool symmetric,
             const char* mode, float dst_type_max, const aclTensor* y, const aclTensor* scale, const aclTensor* offset),
            (x, smooth, group, dst_type, symmetric, mode, dst_type_max, y, scale, offset)) {
  require(dst_type_max == 0, "dst_type_max is %g; it belongs to types of Ascend 950, int8 and int4 take 0",
          static_cast<double>(dst_type_max));
  return plan_dynamic(x, smooth, group, symmetric, mode, y, scale, offset);
}

}  // namespace aloft
