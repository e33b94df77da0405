// The FlatQuant transform of the aclnn door: two small products, then int4 by token.
#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "kernels/parallel.h"
#include "opapi/matmul.h"
#include "opapi/quant.h"

namespace aloft {
namespace {

struct Sizes {
  int64_t m, n1, n2;
};

template <class T>
void quantize_tokens(const T* z, Sizes s, float clip, char* y, float* scale) {
  const int64_t count = s.n1 * s.n2;
  parallel_for(s.m, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, count)), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(count));
    for (int64_t t = begin; t < end; ++t) {
      float m = 0;
      for (int64_t i = 0; i < count; ++i) {
        row[static_cast<size_t>(i)] = to_float(z[t * count + i]);
        m = std::max(m, std::fabs(row[static_cast<size_t>(i)]));
      }
      const float factor = m > 0 ? 7.f / clip / m : 0.f;
      quantize_row_static(row.data(), count, &factor, nullptr, 0, false, QuantOut::I4, y + t * count / 2);
      scale[t] = m * clip / 7.f;
    }
  });
}

Operand rows_of(const void* data, Element type, int64_t stride) {
  Operand o;
  o.data = data, o.type = type, o.row_stride = stride, o.col_stride = 1;
  return o;
}

}  // namespace

// z = p1 @ (x @ p2), both rounded to x's type (the second product's operand is 16-bit); per token m = max |z|:
// out = sat4(rint(z * (7 / clip_ratio / m))), scale = m * clip_ratio / 7.
ALOFT_ACLNN(FlatQuant,
            (const aclTensor* x, const aclTensor* p1, const aclTensor* p2, double clip_ratio,
             const aclTensor* out_tensor, const aclTensor* scale),
            (x, p1, p2, clip_ratio, out_tensor, scale)) {
  const Tensor X = in("x", x), P1 = in("kronecker_p1", p1), P2 = in("kronecker_p2", p2);
  const Tensor Y = out("out", out_tensor), S = out("quant_scale", scale);
  require(X.dtype == DType::F16 || X.dtype == DType::BF16, "x must be float16 or bfloat16, got %s",
          dtype_name(X.dtype));
  require(X.ndim == 3, "x has the shape %s, it must be [tokens, n1, n2]", X.shape_text().c_str());
  const Sizes s{X.size(0), X.size(1), X.size(2)};
  for (const auto& [name, t, n] : {std::tuple("kronecker_p1", &P1, s.n1), std::tuple("kronecker_p2", &P2, s.n2)}) {
    require(t->dtype == X.dtype, "%s must have the dtype of x (%s), got %s", name, dtype_name(X.dtype),
            dtype_name(t->dtype));
    ALOFT_REQUIRE(t->ndim == 2 && t->size(0) == n && t->size(1) == n, "%s has the shape %s, it must be [%lld, %lld]",
                  name, t->shape_text().c_str(), ll(n), ll(n));
  }
  require(clip_ratio > 0 && clip_ratio <= 1, "clip_ratio is %g, it must be in (0, 1]", clip_ratio);
  const QuantOut form = quant_out("out", Y, "x", X);
  require(form == QuantOut::I4, "out must be packed int4 (int32), got %s", dtype_name(Y.dtype));
  ALOFT_REQUIRE(S.dtype == DType::F32 && S.numel() == s.m && S.contiguous(),
                "quant_scale must be float32 [%lld], got %s %s", ll(s.m), dtype_name(S.dtype), S.shape_text().c_str());
  limit(s.n1 <= 256 && s.n2 <= 256, "n1 is %lld and n2 %lld, at most 256", ll(s.n1), ll(s.n2));
  limit(s.m <= 262144, "%lld tokens, at most 262144", ll(s.m));
  if (!X.numel()) return nullptr;
  const float clip = static_cast<float>(clip_ratio);
  return [=] {
    Dense from(X, Dense::Read), left(P1, Dense::Read), right(P2, Dense::Read), to(Y, Dense::Write);
    const Element type = element_of("x", X);
    std::vector<uint16_t> half(static_cast<size_t>(X.numel())), whole(half.size());
    Matmul first;
    first.m = s.m * s.n1, first.n = s.n2, first.k = s.n2;
    first.a = rows_of(from.data(), type, s.n2), first.b = rows_of(right.data(), type, s.n2);
    first.out = rows_of(half.data(), type, s.n2);
    matmul(first);
    Matmul second;
    second.m = s.n1, second.n = s.n2, second.k = s.n1;
    second.batch_dims = 1, second.batch[0] = s.m;
    second.a = rows_of(left.data(), type, s.n1);
    second.b = rows_of(half.data(), type, s.n2), second.b.batch_stride[0] = s.n1 * s.n2;
    second.out = rows_of(whole.data(), type, s.n2), second.out.batch_stride[0] = s.n1 * s.n2;
    matmul(second);
    char* y = static_cast<char*>(to.data());
    if (type == Element::BF16) {
      quantize_tokens(reinterpret_cast<const bf16*>(whole.data()), s, clip, y, S.ptr<float>());
    } else {
      quantize_tokens(reinterpret_cast<const f16*>(whole.data()), s, clip, y, S.ptr<float>());
    }
    to.commit();
  };
}

}  // namespace aloft
