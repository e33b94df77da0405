// Softmax, log-softmax and their gradients.
#include "kernels/softmax.h"

#include "opapi/dims.h"

namespace aloft {
namespace {

Work plan_softmax(const aclTensor* self, int64_t dim, aclTensor* out_tensor, bool log) {
  const Tensor X = in("self", self), Y = out("out", out_tensor);
  require(is_float(X.dtype), "self must be float32, float16 or bfloat16, got %s", dtype_name(X.dtype));
  require(Y.dtype == X.dtype || Y.dtype == DType::F32, "out must be %s like self or float32, got %s",
          dtype_name(X.dtype), dtype_name(Y.dtype));
  ALOFT_REQUIRE(Y.same_shape(X), "out must have the shape of self %s, got %s", X.shape_text().c_str(),
                Y.shape_text().c_str());
  const Split s = split_at("self", X, dim);
  if (!X.numel()) return nullptr;
  return [=] {
    Dense x(X, Dense::Read), y(Y, Dense::Write);
    SoftmaxArgs a;
    a.outer = s.outer, a.n = s.n, a.inner = s.inner;
    a.dtype = X.dtype, a.y_dtype = Y.dtype, a.log = log;
    a.x = x.data(), a.y = y.data();
    softmax(a);
    y.commit();
  };
}

Work plan_backward(const aclTensor* gradient, const aclTensor* output, int64_t dim, aclTensor* out_tensor, bool log) {
  const Tensor G = in("gradOutput", gradient), O = in("output", output), Y = out("gradInput", out_tensor);
  require(is_float(G.dtype), "gradOutput must be float32, float16 or bfloat16, got %s", dtype_name(G.dtype));
  require_like("output", O, G, "gradOutput");
  require_like("gradInput", Y, G, "gradOutput");
  const Split s = split_at("gradOutput", G, dim);
  if (!G.numel()) return nullptr;
  return [=] {
    Dense g(G, Dense::Read), o(O, Dense::Read), y(Y, Dense::Write);
    SoftmaxArgs a;
    a.outer = s.outer, a.n = s.n, a.inner = s.inner;
    a.dtype = G.dtype, a.y_dtype = Y.dtype, a.log = log;
    a.x = g.data(), a.output = o.data(), a.y = y.data();
    softmax(a);
    y.commit();
  };
}

}  // namespace

ALOFT_ACLNN(Softmax, (const aclTensor* self, int64_t dim, aclTensor* out), (self, dim, out)) {
  return plan_softmax(self, dim, out, false);
}

ALOFT_ACLNN(LogSoftmax, (const aclTensor* self, int64_t dim, aclTensor* out), (self, dim, out)) {
  return plan_softmax(self, dim, out, true);
}

ALOFT_ACLNN(SoftmaxBackward, (const aclTensor* gradOutput, const aclTensor* output, int64_t dim, aclTensor* gradInput),
            (gradOutput, output, dim, gradInput)) {
  return plan_backward(gradOutput, output, dim, gradInput, false);
}

ALOFT_ACLNN(LogSoftmaxBackward,
            (const aclTensor* gradOutput, const aclTensor* output, int64_t dim, aclTensor* gradInput),
            (gradOutput, output, dim, gradInput)) {
  return plan_backward(gradOutput, output, dim, gradInput, true);
}

}  // namespace aloft
