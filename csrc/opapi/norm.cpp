// Normalisation operators of the aclnn door.
#include "kernels/norm.h"

#include <utility>

#include "kernels/norm_grad.h"
#include "opapi/op.h"

namespace aloft {
namespace {

bool is_float(DType t) { return t == DType::F32 || t == DType::F16 || t == DType::BF16; }

// x seen as [rows, cols]: cols are the trailing dimensions that are normalised.
struct Matrix {
  int64_t rows = 1, cols = 1;
};

void check_dtype(const char* name, const Tensor& t) {
  require(is_float(t.dtype), "%s must be float16, bfloat16 or float32, got %s", name, dtype_name(t.dtype));
}

void check_like(const char* name, const Tensor& t, const char* model_name, const Tensor& model) {
  ALOFT_REQUIRE(t.dtype == model.dtype, "%s must have the dtype of %s (%s), got %s", name, model_name,
                dtype_name(model.dtype), dtype_name(t.dtype));
  ALOFT_REQUIRE(t.same_shape(model), "%s must have the shape of %s %s, got %s", name, model_name,
                model.shape_text().c_str(), t.shape_text().c_str());
}

void check_stats(const char* name, const Tensor& t, int64_t rows, bool float_only) {
  require(t.dtype == DType::F32 || (!float_only && is_float(t.dtype)), "%s must be float32, got %s", name,
          dtype_name(t.dtype));
  ALOFT_REQUIRE(t.numel() == rows && t.contiguous(),
                "%s must hold one value for each of the %lld rows, its shape is %s", name, static_cast<long long>(rows),
                t.shape_text().c_str());
}

Matrix check_weight(const char* name, const Tensor& weight, const char* x_name, const Tensor& x) {
  require(weight.dtype == x.dtype || weight.dtype == DType::F32, "%s must have the dtype of %s (%s) or float32, got %s",
          name, x_name, dtype_name(x.dtype), dtype_name(weight.dtype));
  require(weight.ndim >= 1 && weight.ndim <= x.ndim, "%s has %d dimensions, it needs 1 to %d, as many as %s at most",
          name, weight.ndim, x.ndim, x_name);
  Matrix m;
  for (int i = 0; i < x.ndim; ++i) {
    const int w = i - (x.ndim - weight.ndim);
    if (w < 0) {
      m.rows *= x.size(i);
      continue;
    }
    ALOFT_REQUIRE(weight.size(w) == x.size(i),
                  "%s has the shape %s, which differs from the trailing dimensions of %s %s", name,
                  weight.shape_text().c_str(), x_name, x.shape_text().c_str());
    m.cols *= x.size(i);
  }
  return m;
}

Work plan_rms_norm(const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y,
                   const aclTensor* rstd, float gamma_offset) {
  const Tensor X = in("x", x), G = in("gamma", gamma), Y = out("y", y), R = out("rstd", rstd);
  check_dtype("x", X);
  const Matrix m = check_weight("gamma", G, "x", X);
  check_like("y", Y, "x", X);
  check_stats("rstd", R, m.rows, true);
  if (!X.numel()) return nullptr;
  RmsNormArgs a;
  a.rows = m.rows, a.cols = m.cols, a.x_stride = m.cols;
  a.dtype = X.dtype, a.gamma_dtype = G.dtype;
  a.epsilon = static_cast<float>(epsilon), a.gamma_offset = gamma_offset;
  a.rstd = R.ptr<float>();
  a.x = X.data, a.gamma = G.data, a.y = Y.data;
  if (X.contiguous() && G.contiguous() && Y.contiguous()) return [a] { rms_norm(a); };
  return [=]() mutable {
    Dense rows(X, Dense::Read), weight(G, Dense::Read), result(Y, Dense::Write);
    a.x = rows.data(), a.gamma = weight.data(), a.y = result.data();
    rms_norm(a);
    result.commit();
  };
}

struct AddOutputs {
  Tensor y, sum, y_fp32;
};

Work plan_add_rms_norm(const Tensor& X1, const Tensor& X2, const aclTensor* gamma, double epsilon,
                       const aclTensor* rstd, const AddOutputs& o) {
  const Tensor G = in("gamma", gamma), R = out("rstd", rstd);
  check_dtype("x1", X1);
  check_like("x2", X2, "x1", X1);
  const Matrix m = check_weight("gamma", G, "x1", X1);
  limit(G.dtype == X1.dtype, "gamma is %s, it must have the dtype of x1 (%s)", dtype_name(G.dtype),
        dtype_name(X1.dtype));
  check_like("y", o.y, "x1", X1);
  check_like("x", o.sum, "x1", X1);
  check_stats("rstd", R, m.rows, true);
  limit(X1.numel() > 0, "x1 is empty");
  if (!X1.numel()) return nullptr;
  RmsNormArgs a;
  a.rows = m.rows, a.cols = m.cols, a.x_stride = m.cols;
  a.dtype = X1.dtype, a.gamma_dtype = G.dtype, a.epsilon = static_cast<float>(epsilon);
  a.rstd = R.ptr<float>();
  a.y_fp32 = o.y_fp32.ptr<float>();
  a.x = X1.data, a.residual = X2.data, a.gamma = G.data, a.y = o.y.data, a.sum = o.sum.data;
  if (X1.contiguous() && X2.contiguous() && G.contiguous() && o.y.contiguous() && o.sum.contiguous()) {
    return [a] { rms_norm(a); };
  }
  return [=]() mutable {
    Dense x1(X1, Dense::Read), x2(X2, Dense::Read), weight(G, Dense::Read);
    Dense y(o.y, Dense::Write), sum(o.sum, Dense::Write);
    a.x = x1.data(), a.residual = x2.data(), a.gamma = weight.data(), a.y = y.data(), a.sum = sum.data();
    rms_norm(a);
    y.commit();
    sum.commit();
  };
}

Matrix check_normalized(const Tensor& x, const aclIntArray* normalized_shape) {
  require(normalized_shape && !normalized_shape->values.empty(), "normalized_shape is empty");
  const auto& shape = normalized_shape->values;
  const int n = static_cast<int>(shape.size());
  require(n <= x.ndim, "normalized_shape has %d dimensions, input has %d", n, x.ndim);
  Matrix m;
  for (int i = 0; i < x.ndim; ++i) {
    const int k = i - (x.ndim - n);
    if (k < 0) {
      m.rows *= x.size(i);
      continue;
    }
    ALOFT_REQUIRE(shape[static_cast<size_t>(k)] == x.size(i),
                  "normalized_shape[%d] is %lld, which differs from the trailing dimensions of input %s", k,
                  static_cast<long long>(shape[static_cast<size_t>(k)]), x.shape_text().c_str());
    m.cols *= x.size(i);
  }
  return m;
}

void check_affine(const char* name, const Tensor& w, const Tensor& x, int64_t cols, DType* dtype) {
  if (!w) return;
  require(w.dtype == x.dtype || w.dtype == DType::F32, "%s must have the dtype of input (%s) or float32, got %s", name,
          dtype_name(x.dtype), dtype_name(w.dtype));
  ALOFT_REQUIRE(w.numel() == cols, "%s has the shape %s, the normalised dimensions hold %lld elements", name,
                w.shape_text().c_str(), static_cast<long long>(cols));
  *dtype = w.dtype;
}

struct LayerNormTensors {
  Tensor x, residual, gamma, beta, y, mean, rstd, sum;
};

Work plan_layer_norm(const LayerNormTensors& t, const Matrix& m, double epsilon) {
  check_dtype("input", t.x);
  check_like("out", t.y, "input", t.x);
  LayerNormArgs a;
  a.weight_dtype = t.x.dtype;
  check_affine("weight", t.gamma, t.x, m.cols, &a.weight_dtype);
  check_affine("bias", t.beta, t.x, m.cols, &a.weight_dtype);
  require(!t.gamma || !t.beta || t.gamma.dtype == t.beta.dtype, "bias must have the dtype of weight (%s), got %s",
          dtype_name(t.gamma.dtype), dtype_name(t.beta.dtype));
  if (t.mean) check_stats("mean", t.mean, m.rows, false);
  if (t.rstd) check_stats("rstd", t.rstd, m.rows, false);
  require(!t.mean || !t.rstd || t.mean.dtype == t.rstd.dtype, "mean and rstd must have one dtype");
  if (!m.rows || !m.cols) return nullptr;
  a.rows = m.rows, a.cols = m.cols, a.dtype = t.x.dtype, a.epsilon = static_cast<float>(epsilon);
  a.stats_dtype = t.mean ? t.mean.dtype : t.rstd ? t.rstd.dtype : DType::F32;
  return [=]() mutable {
    Dense x(t.x, Dense::Read), residual(t.residual, Dense::Read), gamma(t.gamma, Dense::Read);
    Dense beta(t.beta, Dense::Read), y(t.y, Dense::Write), sum(t.sum, Dense::Write);
    a.x = x.data(), a.residual = residual.data(), a.gamma = gamma.data(), a.beta = beta.data();
    a.y = y.data(), a.sum = sum.data();
    a.mean = t.mean.data, a.rstd = t.rstd.data;
    layer_norm(a);
    y.commit();
    sum.commit();
  };
}

}  // namespace

ALOFT_ACLNN(RmsNorm,
            (const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y, const aclTensor* rstd),
            (x, gamma, epsilon, y, rstd)) {
  return plan_rms_norm(x, gamma, epsilon, y, rstd, 0.0f);
}

ALOFT_ACLNN(GemmaRmsNorm,
            (const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y, const aclTensor* rstd),
            (x, gamma, epsilon, y, rstd)) {
  return plan_rms_norm(x, gamma, epsilon, y, rstd, 1.0f);
}

ALOFT_ACLNN(AddRmsNorm,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, double epsilon, const aclTensor* y,
             const aclTensor* rstd, const aclTensor* x),
            (x1, x2, gamma, epsilon, y, rstd, x)) {
  return plan_add_rms_norm(in("x1", x1), in("x2", x2), gamma, epsilon, rstd, {out("y", y), out("x", x), {}});
}

// x1 receives y, x2 the sum.
ALOFT_ACLNN(InplaceAddRmsNorm,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, double epsilon, const aclTensor* rstd),
            (x1, x2, gamma, epsilon, rstd)) {
  const Tensor X1 = in("x1", x1), X2 = in("x2", x2);
  return plan_add_rms_norm(X1, X2, gamma, epsilon, rstd, {X1, X2, {}});
}

ALOFT_ACLNN(AddRmsNormCast,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, double epsilon, const aclTensor* y1,
             const aclTensor* y2, const aclTensor* rstd, const aclTensor* x),
            (x1, x2, gamma, epsilon, y1, y2, rstd, x)) {
  const Tensor X1 = in("x1", x1), Y1 = out("y1", y1);
  require(Y1.dtype == DType::F32, "y1 must be float32, got %s", dtype_name(Y1.dtype));
  ALOFT_REQUIRE(Y1.same_shape(X1) && Y1.contiguous(), "y1 must have the shape of x1 %s and be dense, got %s",
                X1.shape_text().c_str(), Y1.shape_text().c_str());
  return plan_add_rms_norm(X1, in("x2", x2), gamma, epsilon, rstd, {out("y2", y2), out("x", x), Y1});
}

ALOFT_ACLNN(RmsNormGrad,
            (const aclTensor* dy, const aclTensor* x, const aclTensor* rstd, const aclTensor* gamma,
             const aclTensor* dx, const aclTensor* dgamma),
            (dy, x, rstd, gamma, dx, dgamma)) {
  const Tensor DY = in("dy", dy), X = in("x", x), R = in("rstd", rstd), G = in("gamma", gamma);
  const Tensor DX = out("dx", dx), DG = out("dgamma", dgamma);
  check_dtype("x", X);
  check_like("dy", DY, "x", X);
  const Matrix m = check_weight("gamma", G, "x", X);
  check_stats("rstd", R, m.rows, true);
  check_like("dx", DX, "x", X);
  ALOFT_REQUIRE(DG.same_shape(G), "dgamma must have the shape of gamma %s, got %s", G.shape_text().c_str(),
                DG.shape_text().c_str());
  check_dtype("dgamma", DG);
  return [=] {
    Dense grad(DY, Dense::Read), rows(X, Dense::Read), weight(G, Dense::Read);
    Dense dx_rows(DX, Dense::Write), dweight(DG, Dense::Write);
    RmsNormGradArgs a;
    a.rows = m.rows, a.cols = m.cols, a.dtype = X.dtype, a.gamma_dtype = G.dtype, a.dgamma_dtype = DG.dtype;
    a.dy = grad.data(), a.x = rows.data(), a.gamma = weight.data(), a.rstd = R.ptr<float>();
    a.dx = dx_rows.data(), a.dgamma = dweight.data();
    rms_norm_grad(a);
    dx_rows.commit();
    dweight.commit();
  };
}

ALOFT_ACLNN(LayerNorm,
            (const aclTensor* input, const aclIntArray* normalized_shape, const aclTensor* weight,
             const aclTensor* bias, double eps, const aclTensor* y, const aclTensor* mean, const aclTensor* rstd),
            (input, normalized_shape, weight, bias, eps, y, mean, rstd)) {
  LayerNormTensors t;
  t.x = in("input", input), t.y = out("out", y);
  t.gamma = optional("weight", weight), t.beta = optional("bias", bias);
  t.mean = optional_out("mean", mean), t.rstd = optional_out("rstd", rstd);
  return plan_layer_norm(t, check_normalized(t.x, normalized_shape), eps);
}

// output_mask: which of dx, dgamma and dbeta are wanted.
ALOFT_ACLNN(LayerNormBackward,
            (const aclTensor* dy, const aclTensor* input, const aclIntArray* normalized_shape, const aclTensor* mean,
             const aclTensor* rstd, const aclTensor* weight, const aclTensor* bias, const aclBoolArray* output_mask,
             const aclTensor* dx, const aclTensor* dgamma, const aclTensor* dbeta),
            (dy, input, normalized_shape, mean, rstd, weight, bias, output_mask, dx, dgamma, dbeta)) {
  require(output_mask && output_mask->values.size() == 3, "outputMask must hold three values");
  const auto& mask = output_mask->values;
  const Tensor DY = in("gradOut", dy), X = in("input", input), M = in("mean", mean), R = in("rstd", rstd);
  const Tensor W = optional("weight", weight), B = optional("bias", bias);
  const Tensor DX = mask[0] ? out("gradInputOut", dx) : Tensor();
  const Tensor DG = mask[1] && W ? out("gradWeightOut", dgamma) : Tensor();
  const Tensor DB = mask[2] && B ? out("gradBiasOut", dbeta) : Tensor();
  check_dtype("input", X);
  check_like("gradOut", DY, "input", X);
  const Matrix m = check_normalized(X, normalized_shape);
  check_stats("mean", M, m.rows, false);
  check_stats("rstd", R, m.rows, false);
  require(M.dtype == R.dtype, "mean and rstd must have one dtype");
  DType weight_dtype = X.dtype;
  check_affine("weight", W, X, m.cols, &weight_dtype);
  if (DX) check_like("gradInputOut", DX, "input", X);
  for (const auto& [name, gradient] : {std::make_pair("gradWeightOut", DG), std::make_pair("gradBiasOut", DB)}) {
    if (!gradient) continue;
    check_dtype(name, gradient);
    ALOFT_REQUIRE(gradient.numel() == m.cols, "%s has the shape %s, the normalised dimensions hold %lld elements", name,
                  gradient.shape_text().c_str(), static_cast<long long>(m.cols));
  }
  return [=] {
    Dense grad(DY, Dense::Read), rows(X, Dense::Read), gamma(W, Dense::Read);
    Dense dx_rows(DX, Dense::Write), dweight(DG, Dense::Write), dbias(DB, Dense::Write);
    LayerNormGradArgs a;
    a.rows = m.rows, a.cols = m.cols, a.dtype = X.dtype, a.stats_dtype = M.dtype;
    a.gamma_dtype = W.dtype, a.dgamma_dtype = DG.dtype, a.dbeta_dtype = DB.dtype;
    a.dy = grad.data(), a.x = rows.data(), a.mean = M.data, a.rstd = R.data, a.gamma = gamma.data();
    a.dx = dx_rows.data(), a.dgamma = dweight.data(), a.dbeta = dbias.data();
    layer_norm_grad(a);
    dx_rows.commit();
    dweight.commit();
    dbias.commit();
  };
}

ALOFT_ACLNN(FastLayerNorm,
            (const aclTensor* input, const aclIntArray* normalized_shape, const aclTensor* weight,
             const aclTensor* bias, double eps, const aclTensor* y, const aclTensor* mean, const aclTensor* rstd),
            (input, normalized_shape, weight, bias, eps, y, mean, rstd)) {
  return LayerNorm_plan(input, normalized_shape, weight, bias, eps, y, mean, rstd);
}

ALOFT_ACLNN(AddLayerNorm,
            (const aclTensor* x1, const aclTensor* x2, const aclTensor* gamma, const aclTensor* beta,
             const aclTensor* bias, double epsilon, bool additional_output, const aclTensor* y, const aclTensor* mean,
             const aclTensor* rstd, const aclTensor* x),
            (x1, x2, gamma, beta, bias, epsilon, additional_output, y, mean, rstd, x)) {
  require(!bias, "bias is not supported, add it to x2");
  LayerNormTensors t;
  t.x = in("x1", x1), t.residual = in("x2", x2), t.gamma = in("gamma", gamma), t.beta = in("beta", beta);
  t.y = out("y", y), t.mean = optional_out("mean", mean), t.rstd = optional_out("rstd", rstd);
  check_like("x2", t.residual, "x1", t.x);
  const Matrix m = check_weight("gamma", t.gamma, "x1", t.x);
  const Tensor X = optional_out("x", x);
  if (additional_output) {
    t.sum = out("x", x);
    check_like("x", t.sum, "x1", t.x);
  }
  Work work = plan_layer_norm(t, m, epsilon);
  if (additional_output || !X || !X.numel()) return work;
  return [=] {
    if (work) work();
    poison(X);  // hardware leaves it undefined
  };
}

}  // namespace aloft
