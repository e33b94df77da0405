// Restricting the next token.
#include "kernels/sampling.h"

#include "opapi/dims.h"

namespace aloft {

ALOFT_ACLNN(ApplyTopKTopP, (const aclTensor* logits, const aclTensor* p, const aclTensor* k, aclTensor* out),
            (logits, p, k, out)) {
  const Tensor X = in("logits", logits), Y = aloft::out("out", out);
  const Tensor P = optional("p", p), K = optional("k", k);
  require(is_float(X.dtype), "logits must be float32, float16 or bfloat16, got %s", dtype_name(X.dtype));
  require(X.ndim == 2, "logits must be [batch, vocabulary], got %d dimensions", X.ndim);
  require(P || K, "p and k are both missing, give at least one");
  require_like("out", Y, X, "logits");
  const int64_t rows = X.size(0), vocabulary = X.size(1);
  if (P) {
    ALOFT_REQUIRE(P.dtype == X.dtype && P.ndim == 1 && P.size(0) == rows, "p must be %s [%lld], got %s %s",
                  dtype_name(X.dtype), static_cast<long long>(rows), dtype_name(P.dtype), P.shape_text().c_str());
  }
  if (K) {
    ALOFT_REQUIRE(K.dtype == DType::I32 && K.ndim == 1 && K.size(0) == rows, "k must be int32 [%lld], got %s %s",
                  static_cast<long long>(rows), dtype_name(K.dtype), K.shape_text().c_str());
  }
  require(vocabulary < (int64_t{1} << 31), "logits has %lld columns, at most 2^31 - 1 are supported",
          static_cast<long long>(vocabulary));
  if (!X.numel()) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), y(Y, Dense::Write);
    TopKTopPArgs a;
    a.rows = rows, a.vocabulary = vocabulary, a.dtype = X.dtype;
    a.logits = x.data(), a.y = y.data();
    std::vector<unsigned char> p_rows, k_rows;
    if (P) a.p = contiguous(P, &p_rows).data;
    if (K) a.k = static_cast<const int32_t*>(contiguous(K, &k_rows).data);
    top_k_top_p(a);
    y.commit();
  };
}

}  // namespace aloft
