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

}  // namespace aloft
