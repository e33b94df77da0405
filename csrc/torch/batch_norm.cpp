#include "torch/batch_norm.h"

#include <vector>

namespace aloft::torch_route {
namespace {

using at::Tensor;

at::ScalarType statistics_type(const Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All axes but the channels.
std::vector<int64_t> reduced(const Tensor& input) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < input.dim(); ++i)
    if (i != 1) axes.push_back(i);
  return axes;
}

// A per-channel vector in the shape that broadcasts over `input`, as a statistic.
Tensor channels(const Tensor& vector, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return vector.to(statistics_type(input)).reshape(shape);
}

}  // namespace

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  TORCH_CHECK(input.dim() >= 2, "batch_norm_stats: input must be [N, C, ...], got ", input.dim(), " dimensions");
  const Tensor x = input.to(statistics_type(input));
  const auto axes = reduced(input);
  const Tensor mean = x.mean(axes);
  const Tensor variance = x.sub(channels(mean, input)).square().mean(axes);
  return {mean, variance.add(eps).rsqrt()};
}

Tensor batch_norm_elemt(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                        const Tensor& mean, const Tensor& invstd, double) {
  Tensor y = input.to(statistics_type(input)).sub(channels(mean, input)).mul_(channels(invstd, input));
  if (weight && weight->defined()) y.mul_(channels(*weight, input));
  if (bias && bias->defined()) y.add_(channels(*bias, input));
  return y.to(input.scalar_type());
}

Tensor& batch_norm_elemt_out(const Tensor& input, const std::optional<Tensor>& weight,
                             const std::optional<Tensor>& bias, const Tensor& mean, const Tensor& invstd, double eps,
                             Tensor& out) {
  const Tensor result = batch_norm_elemt(input, weight, bias, mean, invstd, eps);
  out.resize_(result.sizes());
  return out.copy_(result);
}

std::tuple<Tensor, Tensor> batch_norm_gather_stats_with_counts(const Tensor& input, const Tensor& mean,
                                                               const Tensor& invstd,
                                                               const std::optional<Tensor>& running_mean,
                                                               const std::optional<Tensor>& running_var,
                                                               double momentum, double eps, const Tensor& counts) {
  // mean and invstd are [world, C], counts [world]: the parallel form of mean and variance.
  const auto type = statistics_type(input);
  const Tensor n = counts.to(type).reshape({-1, 1});
  const Tensor total = n.sum();
  const Tensor m = mean.to(type);
  const Tensor all_mean = m.mul(n).sum(0).div(total);
  const Tensor variance = invstd.to(type).pow(-2).sub(eps);
  const Tensor squares = variance.add(m.sub(all_mean).square()).mul(n).sum(0);
  if (running_mean && running_mean->defined()) {
    running_mean->mul_(1 - momentum).add_(all_mean.to(running_mean->scalar_type()), momentum);
  }
  if (running_var && running_var->defined()) {
    running_var->mul_(1 - momentum).add_(squares.div(total.sub(1)).to(running_var->scalar_type()), momentum);
  }
  return {all_mean, squares.div(total).add(eps).rsqrt()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(const Tensor& grad, const Tensor& input,
                                                                      const Tensor& mean, const Tensor& invstd,
                                                                      const std::optional<Tensor>& weight,
                                                                      bool input_grad, bool weight_grad,
                                                                      bool bias_grad) {
  const auto axes = reduced(input);
  const Tensor g = grad.to(statistics_type(input));
  const Tensor sum_dy = g.sum(axes);
  const Tensor sum_dy_xmu = g.mul(input.to(g.scalar_type()).sub(channels(mean, input))).sum(axes);
  const auto type = weight && weight->defined() ? weight->scalar_type() : g.scalar_type();
  return {input_grad ? sum_dy : Tensor(), input_grad ? sum_dy_xmu : Tensor(),
          weight_grad ? sum_dy_xmu.mul(invstd.to(g.scalar_type())).to(type) : Tensor(),
          bias_grad ? sum_dy.to(type) : Tensor()};
}

Tensor batch_norm_backward_elemt(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                 const std::optional<Tensor>& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                                 const Tensor& count) {
  const auto type = statistics_type(input);
  const Tensor total = count.to(type).sum();
  const Tensor inv = channels(invstd, input);
  const Tensor centred = input.to(type).sub(channels(mean, input));
  Tensor dx = grad.to(type)
                  .sub(channels(sum_dy, input).div(total))
                  .sub(centred.mul(inv.square()).mul(channels(sum_dy_xmu, input).div(total)))
                  .mul(inv);
  if (weight && weight->defined()) dx = dx.mul(channels(*weight, input));
  return dx.to(input.scalar_type());
}

}  // namespace aloft::torch_route
