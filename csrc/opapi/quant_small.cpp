// Small quantisers and dequantisers: by expert, back to 16 bits, integer sums with bias.
#include <cstring>
#include <memory>

#include "kernels/half.h"
#include "kernels/parallel.h"
#include "kernels/quant_matmul.h"
#include "opapi/quant.h"

namespace aloft {
namespace {

Tensor given(const char* name, const aclTensor* t) {
  const Tensor found = optional(name, t);
  return found && found.numel() > 0 ? found : Tensor();
}

void store_row(DType type, void* to, int64_t at, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (type == DType::BF16) {
      static_cast<bf16*>(to)[at + i] = from_float<bf16>(from[i]);
    } else if (type == DType::F16) {
      static_cast<f16*>(to)[at + i] = from_float<f16>(from[i]);
    } else {
      static_cast<float*>(to)[at + i] = from[i];
    }
  }
}

}  // namespace

// y = (x + offset) * scale; x int8, or packed int4 (then scale has the length of y's last dimension).
ALOFT_ACLNN(AscendAntiQuant,
            (const aclTensor* x, const aclTensor* scale, const aclTensor* offset, int64_t dst_type, bool sqrt_mode,
             const aclTensor* y),
            (x, scale, offset, dst_type, sqrt_mode, y)) {
  const Tensor X = in("x", x), S = in("scale", scale), Z = given("offset", offset), Y = out("y", y);
  require(X.dtype == DType::I8 || X.dtype == DType::I32, "x must be int8, or int4 packed in int32, got %s",
          dtype_name(X.dtype));
  require(!sqrt_mode, "sqrt_mode is not available on the virtual NPU");
  require(Y.dtype == DType::F16 || Y.dtype == DType::BF16, "y must be float16 or bfloat16, got %s",
          dtype_name(Y.dtype));
  require(X.ndim >= 1, "x has no dimensions");
  Tensor expected = X;
  if (X.dtype == DType::I32) expected.sizes[X.ndim - 1] *= 8;
  ALOFT_REQUIRE(Y.same_shape(expected), "y must have the shape %s, got %s", expected.shape_text().c_str(),
                Y.shape_text().c_str());
  const int64_t cols = Y.size(-1);
  for (const Tensor* t : {&S, &Z}) {
    if (!t->present) continue;
    const char* name = t == &S ? "scale" : "offset";
    require(is_float(t->dtype), "%s must be float, got %s", name, dtype_name(t->dtype));
    ALOFT_REQUIRE(t->numel() == 1 || (t->numel() == cols && t->size(-1) == cols),
                  "%s has the shape %s, it must be [1] or [%lld]", name, t->shape_text().c_str(), ll(cols));
  }
  if (!Y.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write);
    const std::vector<float> s = float_values(S), z = float_values(Z);
    std::vector<int8_t> bytes(static_cast<size_t>(cols));
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < Y.numel() / cols; ++r) {
      if (X.dtype == DType::I32) {
        unpack_int4(static_cast<const uint8_t*>(from.data()) + r * cols / 2, cols, bytes.data());
      } else {
        std::memcpy(bytes.data(), static_cast<const int8_t*>(from.data()) + r * cols, bytes.size());
      }
      for (size_t i = 0; i < row.size(); ++i) {
        const float zero = z.empty() ? 0.f : z[z.size() == 1 ? 0 : i];
        row[i] = (static_cast<float>(bytes[i]) + zero) * s[s.size() == 1 ? 0 : i];
      }
      store_row(Y.dtype, to.data(), r * cols, row.data(), cols);
    }
    to.commit();
  };
}

// y = (x + bias) * weight_scale * activation_scale for an integer bias, else x * scales + bias.
ALOFT_ACLNN(DequantBias,
            (const aclTensor* x, const aclTensor* weight_scale, const aclTensor* activation_scale,
             const aclTensor* bias, int64_t output_dtype, const aclTensor* y),
            (x, weight_scale, activation_scale, bias, output_dtype, y)) {
  const Tensor X = in("x", x), W = in("weight_scale", weight_scale), A = given("activation_scale", activation_scale);
  const Tensor B = given("bias", bias), Y = out("y", y);
  require(X.dtype == DType::I32 && X.ndim == 2, "x must be int32 [rows, columns], got %s %s", dtype_name(X.dtype),
          X.shape_text().c_str());
  const int64_t rows = X.size(0), cols = X.size(1);
  require(Y.dtype == DType::F16 || Y.dtype == DType::BF16, "y must be float16 or bfloat16, got %s",
          dtype_name(Y.dtype));
  ALOFT_REQUIRE(Y.same_shape(X), "y must have the shape of x %s, got %s", X.shape_text().c_str(),
                Y.shape_text().c_str());
  require(is_float(W.dtype) && W.numel() == cols, "weight_scale must be float [%lld], got %s %s", ll(cols),
          dtype_name(W.dtype), W.shape_text().c_str());
  if (A) {
    require(is_float(A.dtype) && A.numel() == rows, "activation_scale must be float [%lld], got %s %s", ll(rows),
            dtype_name(A.dtype), A.shape_text().c_str());
  }
  if (B) {
    require((is_float(B.dtype) || B.dtype == DType::I32) && B.numel() == cols,
            "bias must be int32 or float [%lld], got %s %s", ll(cols), dtype_name(B.dtype), B.shape_text().c_str());
  }
  if (!Y.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write), added(B ? B : X, Dense::Read);
    const std::vector<float> w = float_values(W), a = float_values(A);
    const bool whole = B && B.dtype == DType::I32;
    const std::vector<float> b = B && !whole ? float_values(B) : std::vector<float>();
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t* v = static_cast<const int32_t*>(from.data()) + r * cols;
      for (int64_t j = 0; j < cols; ++j) {
        const uint32_t plus = whole ? static_cast<uint32_t>(static_cast<const int32_t*>(added.data())[j]) : 0;
        float f = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(v[j]) + plus));
        f = f * w[static_cast<size_t>(j)];
        if (A) f = f * a[static_cast<size_t>(r)];
        if (!b.empty()) f = f + b[static_cast<size_t>(j)];
        row[static_cast<size_t>(j)] = f;
      }
      store_row(Y.dtype, to.data(), r * cols, row.data(), cols);
    }
    to.commit();
  };
}

// y = rint(x * scale[group of the row] + offset); group_index: row ends.
ALOFT_ACLNN(GroupQuant,
            (const aclTensor* x, const aclTensor* scale, const aclTensor* group_index, const aclTensor* offset,
             int64_t dst_type, const aclTensor* y),
            (x, scale, group_index, offset, dst_type, y)) {
  const Tensor X = in("x", x), S = in("scale", scale), G = in("group_index", group_index);
  const Tensor Z = given("offset", offset), Y = out("y", y);
  require(is_float(X.dtype) && X.ndim == 2, "x must be float [rows, columns], got %s %s", dtype_name(X.dtype),
          X.shape_text().c_str());
  const int64_t rows = X.size(0), cols = X.size(1);
  require(G.dtype == DType::I32 || G.dtype == DType::I64, "group_index must be int32 or int64, got %s",
          dtype_name(G.dtype));
  ALOFT_REQUIRE(is_float(S.dtype) && S.ndim == 2 && S.size(1) == cols && G.ndim == 1 && G.size(0) == S.size(0),
                "scale %s and group_index %s must be [E, %lld] and [E]", S.shape_text().c_str(), G.shape_text().c_str(),
                ll(cols));
  require(!Z || (is_float(Z.dtype) && Z.numel() == 1), "offset must be one float");
  const QuantOut form = quant_out("y", Y, "x", X);
  if (!X.numel()) return nullptr;
  return [=] {
    Dense from(X, Dense::Read), to(Y, Dense::Write), ends(G, Dense::Read);
    const std::vector<float> s = float_values(S), z = float_values(Z);
    int64_t at = 0;
    for (int64_t e = 0; e < G.size(0); ++e) {
      const int64_t end =
          G.dtype == DType::I32 ? static_cast<int32_t*>(ends.data())[e] : static_cast<int64_t*>(ends.data())[e];
      require(end >= at && end <= rows, "group_index[%lld] is %lld: row ends ascend up to %lld", ll(e), ll(end),
              ll(rows));
      const std::vector<float> zero(static_cast<size_t>(cols), z.empty() ? 0.f : z[0]);
      StaticQuantArgs a;
      a.rows = end - at, a.cols = cols, a.dtype = X.dtype, a.out = form;
      a.x = static_cast<const char*>(from.data()) + at * cols * static_cast<int64_t>(dtype_size(X.dtype));
      a.y = static_cast<char*>(to.data()) + at * quant_row_bytes(form, cols);
      a.scale = s.data() + e * cols, a.offset = Z ? zero.data() : nullptr, a.col_step = 1;
      quantize(a);
      at = end;
    }
    require(at == rows, "the last of group_index is %lld, x has %lld rows", ll(at), ll(rows));
    to.commit();
  };
}

}  // namespace aloft
