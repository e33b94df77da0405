// Normalisation operators of the aclnn door.
#include "kernels/norm.h"

#include "opapi/op.h"

namespace aloft {
namespace {

bool is_float(DType t) { return t == DType::F32 || t == DType::F16 || t == DType::BF16; }

// x [..., cols...] normalised over the trailing dimensions of gamma.
struct NormShape {
  int64_t rows = 1, cols = 1;
};

NormShape check_norm(const Tensor& x, const Tensor& gamma) {
  require(is_float(x.dtype), "x must be float16, bfloat16 or float32, got %s", dtype_name(x.dtype));
  require(gamma.dtype == x.dtype || gamma.dtype == DType::F32, "gamma must have the dtype of x (%s) or float32, got %s",
          dtype_name(x.dtype), dtype_name(gamma.dtype));
  require(gamma.ndim >= 1 && gamma.ndim <= x.ndim, "gamma has %d dimensions, x has %d: gamma needs 1 to that many",
          gamma.ndim, x.ndim);
  NormShape shape;
  for (int i = 0; i < x.ndim; ++i) {
    const int g = i - (x.ndim - gamma.ndim);
    if (g < 0) {
      shape.rows *= x.size(i);
      continue;
    }
    ALOFT_REQUIRE(gamma.size(g) == x.size(i), "gamma has the shape %s, the trailing dimensions of x %s differ",
                  gamma.shape_text().c_str(), x.shape_text().c_str());
    shape.cols *= x.size(i);
  }
  return shape;
}

}  // namespace

ALOFT_ACLNN(RmsNorm,
            (const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y, const aclTensor* rstd),
            (x, gamma, epsilon, y, rstd)) {
  const Tensor X = in("x", x), G = in("gamma", gamma), Y = out("y", y), R = out("rstd", rstd);
  const NormShape shape = check_norm(X, G);
  ALOFT_REQUIRE(Y.dtype == X.dtype && Y.same_shape(X), "y must be %s %s like x, got %s %s", dtype_name(X.dtype),
                X.shape_text().c_str(), dtype_name(Y.dtype), Y.shape_text().c_str());
  require(R.dtype == DType::F32 && R.numel() == shape.rows && R.contiguous(), "rstd must be float32, one per row");
  if (!X.numel()) return nullptr;
  return [=] {
    Dense x_rows(X, Dense::Read), weight(G, Dense::Read), result(Y, Dense::Write);
    RmsNormArgs a;
    a.rows = shape.rows, a.cols = shape.cols, a.x_stride = shape.cols;
    a.dtype = X.dtype, a.gamma_dtype = G.dtype, a.epsilon = static_cast<float>(epsilon);
    a.x = x_rows.data();
    a.gamma = weight.data();
    a.rstd = R.ptr<float>();
    a.y = result.data();
    rms_norm(a);
    result.commit();
  };
}

}  // namespace aloft
