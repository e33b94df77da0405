// The split batch norm that torch defines for accelerators: statistics, their exchange, and application.
// `input` is [N, C, ...]; statistics are [C] in float32 (float64 for float64 input).
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace aloft::torch_route {

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input, double eps);
at::Tensor batch_norm_elemt(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean, const at::Tensor& invstd,
                            double eps);
at::Tensor& batch_norm_elemt_out(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                                 const at::Tensor& invstd, double eps, at::Tensor& out);
std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats_with_counts(const at::Tensor& input, const at::Tensor& mean,
                                                                       const at::Tensor& invstd,
                                                                       const std::optional<at::Tensor>& running_mean,
                                                                       const std::optional<at::Tensor>& running_var,
                                                                       double momentum, double eps,
                                                                       const at::Tensor& counts);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const std::optional<at::Tensor>& weight, bool input_grad, bool weight_grad, bool bias_grad);
at::Tensor batch_norm_backward_elemt(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                                     const at::Tensor& invstd, const std::optional<at::Tensor>& weight,
                                     const at::Tensor& sum_dy, const at::Tensor& sum_dy_xmu, const at::Tensor& count);

}  // namespace aloft::torch_route
