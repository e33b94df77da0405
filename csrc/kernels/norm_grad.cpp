#include "kernels/norm_grad.h"

#include <vector>

#include "kernels/convert.h"

namespace aloft {

void rms_norm_grad(const RmsNormGradArgs& a) {
  const size_t cols = static_cast<size_t>(a.cols);
  std::vector<float> dy(cols), x(cols), gamma(cols), dx(cols);
  std::vector<double> total(cols, 0.0);
  convert(a.gamma, a.gamma_dtype, gamma.data(), DType::F32, a.cols);
  const int64_t item = a.dtype == DType::F32 ? 4 : 2;
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = r * a.cols * item;
    convert(static_cast<const char*>(a.dy) + at, a.dtype, dy.data(), DType::F32, a.cols);
    convert(static_cast<const char*>(a.x) + at, a.dtype, x.data(), DType::F32, a.cols);
    const float rstd = a.rstd[r];
    double dot = 0;
    for (size_t i = 0; i < cols; ++i) {
      dot += static_cast<double>(dy[i]) * gamma[i] * x[i];
      total[i] += static_cast<double>(dy[i]) * x[i] * rstd;
    }
    const float pull = static_cast<float>(dot / static_cast<double>(a.cols)) * rstd * rstd * rstd;
    for (size_t i = 0; i < cols; ++i) dx[i] = dy[i] * gamma[i] * rstd - x[i] * pull;
    convert(dx.data(), DType::F32, static_cast<char*>(a.dx) + at, a.dtype, a.cols);
  }
  for (size_t i = 0; i < cols; ++i) dx[i] = static_cast<float>(total[i]);
  convert(dx.data(), DType::F32, a.dgamma, a.dgamma_dtype, a.cols);
}

void layer_norm_grad(const LayerNormGradArgs& a) {
  const size_t cols = static_cast<size_t>(a.cols), rows = static_cast<size_t>(a.rows);
  std::vector<float> dy(cols), x(cols), gamma(cols, 1.0f), dx(cols), mean(rows), rstd(rows);
  std::vector<double> dgamma(cols, 0.0), dbeta(cols, 0.0);
  if (a.gamma) convert(a.gamma, a.gamma_dtype, gamma.data(), DType::F32, a.cols);
  convert(a.mean, a.stats_dtype, mean.data(), DType::F32, a.rows);
  convert(a.rstd, a.stats_dtype, rstd.data(), DType::F32, a.rows);
  const int64_t item = a.dtype == DType::F32 ? 4 : 2;
  for (size_t r = 0; r < rows; ++r) {
    const int64_t at = static_cast<int64_t>(r) * a.cols * item;
    convert(static_cast<const char*>(a.dy) + at, a.dtype, dy.data(), DType::F32, a.cols);
    convert(static_cast<const char*>(a.x) + at, a.dtype, x.data(), DType::F32, a.cols);
    double total = 0, dot = 0;
    for (size_t i = 0; i < cols; ++i) {
      x[i] = (x[i] - mean[r]) * rstd[r];  // normalised
      const double g = static_cast<double>(dy[i]) * gamma[i];
      total += g;
      dot += g * x[i];
      dgamma[i] += static_cast<double>(dy[i]) * x[i];
      dbeta[i] += dy[i];
    }
    if (!a.dx) continue;
    const float shift = static_cast<float>(total / static_cast<double>(a.cols));
    const float pull = static_cast<float>(dot / static_cast<double>(a.cols));
    for (size_t i = 0; i < cols; ++i) dx[i] = (dy[i] * gamma[i] - shift - x[i] * pull) * rstd[r];
    convert(dx.data(), DType::F32, static_cast<char*>(a.dx) + at, a.dtype, a.cols);
  }
  auto put = [&](const std::vector<double>& sums, void* to, DType dtype) {
    if (!to) return;
    for (size_t i = 0; i < cols; ++i) dx[i] = static_cast<float>(sums[i]);
    convert(dx.data(), DType::F32, to, dtype, a.cols);
  };
  put(dgamma, a.dgamma, a.dgamma_dtype);
  put(dbeta, a.dbeta, a.dbeta_dtype);
}

}  // namespace aloft
