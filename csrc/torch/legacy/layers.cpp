// Legacy operators of layers and losses. 16-bit floats are computed with as float32.
#include <ATen/ops/arange.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/ones.h>

#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

Work mish(const Call& call) {
  check(call, 1, 1);
  return work([x = input(call, 0), y = output(call, 0)] { y.copy_(at::mish(wide(x))); });
}

Work mish_grad(const Call& call) {
  check(call, 2, 1);
  return work([grad = input(call, 0), x = input(call, 1), y = output(call, 0)] {
    y.copy_(at::mish_backward(wide(grad), wide(x)));
  });
}

// (features, labels) -> (loss of each row, its gradient).
Work softmax_cross_entropy(const Call& call) {
  check(call, 2, 2);
  return work([x = input(call, 0), labels = input(call, 1), loss = output(call, 0), grad = output(call, 1)] {
    const at::Tensor logs = wide(x).log_softmax(-1), wanted = wide(labels);
    loss.copy_(logs.mul(wanted).sum(-1).neg().reshape(loss.sizes()));
    grad.copy_(logs.exp().sub(wanted));
  });
}

at::Tensor masked(const at::Tensor& mask, bool triangle, at::IntArrayRef sizes) {
  if (!triangle) return mask.to(at::kBool).expand(sizes);
  return at::ones({sizes[sizes.size() - 2], sizes[sizes.size() - 1]}, at::kBool).triu(1).expand(sizes);
}

// softmax(scale * x), masked positions at -10000 before it.
Work scaled_masked_softmax(const Call& call) {
  check(call, 2, 1);
  const double scale = real(call, "scale", 1.0);
  const bool triangle = integer(call, "fixed_triu_mask", 0) != 0;
  return work([=, x = input(call, 0), mask = input(call, 1), y = output(call, 0)] {
    y.copy_(wide(x).mul(scale).masked_fill(masked(mask, triangle, x.sizes()), -10000).softmax(-1));
  });
}

Work scaled_masked_softmax_grad(const Call& call) {
  check(call, 3, 1);
  const double scale = real(call, "scale", 1.0);
  const bool triangle = integer(call, "fixed_triu_mask", 0) != 0;
  return work([=, grad = input(call, 0), y = input(call, 1), mask = input(call, 2), dx = output(call, 0)] {
    const at::Tensor p = wide(y), g = wide(grad);
    const at::Tensor inner = p.mul(g.sub(p.mul(g).sum(-1, true)));
    dx.copy_(inner.mul(scale).masked_fill(masked(mask, triangle, y.sizes()), 0));
  });
}

// Channels in blocks of 16: blocks of x1 from its offset on, plus blocks of x2 from its own.
Work stride_add(const Call& call) {
  check(call, 2, 1);
  const int64_t from1 = 16 * integer(call, "x1_c1_offset", 0), from2 = 16 * integer(call, "x2_c1_offset", 0),
                length = 16 * integer(call, "c1_len", 0);
  const at::Tensor a = input(call, 0).narrow(1, from1, length), b = input(call, 1).narrow(1, from2, length);
  return work([=, y = output(call, 0)] { y.copy_(wide(a).add(wide(b)).reshape(y.sizes())); });
}

// (x, gx, beta, gamma) -> (mean, rstd, y): the norm of alpha * x + gx over the dimensions of gamma.
Work deep_norm(const Call& call) {
  check(call, 4, 3);
  const double alpha = real(call, "alpha", 0.3), epsilon = real(call, "epsilon", 1e-6);
  return work([=, x = input(call, 0), gx = input(call, 1), beta = input(call, 2), gamma = input(call, 3),
               mean = output(call, 0), rstd = output(call, 1), y = output(call, 2)] {
    std::vector<int64_t> dims;
    for (int64_t i = x.dim() - gamma.dim(); i < x.dim(); ++i) dims.push_back(i);
    const at::Tensor sum = wide(x).mul(alpha).add(wide(gx)), average = sum.mean(dims, true);
    const at::Tensor centred = sum.sub(average), scale = centred.square().mean(dims, true).add(epsilon).rsqrt();
    mean.copy_(average.reshape(mean.sizes()));
    rstd.copy_(scale.reshape(rstd.sizes()));
    y.copy_(centred.mul(scale).mul(wide(gamma)).add(wide(beta)));
  });
}

// [batch, features, time]: the first seq_len steps of each row give mean and standard deviation (unbiased), over
// time alone (type 0) or over features too (type 1).
Work normalize_batch(const Call& call) {
  check(call, 2, 1);
  const bool all = integer(call, "normalize_type", 0) != 0 || text(call, "normalize_type", "") == "all_features";
  const double epsilon = real(call, "epsilon", 1e-5);
  return work([=, x = input(call, 0), lengths = input(call, 1), y = output(call, 0)] {
    for (int64_t i = 0; i < x.size(0); ++i) {
      const at::Tensor row = wide(x.select(0, i)), used = row.narrow(1, 0, lengths[i].item().toLong());
      const std::vector<int64_t> dims = all ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1};
      y.select(0, i).copy_(row.sub(used.mean(dims, true)).div(used.std(dims, true, true).add(epsilon)));
    }
  });
}

std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < x.dim(); ++i)
    if (i != 1) dims.push_back(i);
  return dims;
}

// Sums and sums of squares of each channel, float32.
Work batch_norm_reduce(const Call& call) {
  check(call, 1, 2);
  return work([x = input(call, 0), sum = output(call, 0), squares = output(call, 1)] {
    const at::Tensor values = wide(x);
    sum.copy_(values.sum(all_but_channels(x)).reshape(sum.sizes()));
    squares.copy_(values.square().sum(all_but_channels(x)).reshape(squares.sizes()));
  });
}

// (sums, sums of squares of every device, counts, running mean, running variance) ->
// (mean, 1 / standard deviation, the running values moved on).
Work gather_batch_norm_stats(const Call& call) {
  check(call, 5, 4);
  const double momentum = real(call, "momentum", 0.1), epsilon = real(call, "eps", 1e-5);
  return work([=, sums = input(call, 0), squares = input(call, 1), counts = input(call, 2), old_mean = input(call, 3),
               old_variance = input(call, 4), mean = output(call, 0), invstd = output(call, 1),
               new_mean = output(call, 2), new_variance = output(call, 3)] {
    const at::Tensor count = counts.to(at::kFloat).sum(), average = wide(sums).sum(0).div(count);
    const at::Tensor variance = wide(squares).sum(0).div(count).sub(average.square());
    const at::Tensor moved_mean = wide(old_mean).mul(1 - momentum).add(average, momentum);
    const at::Tensor moved_variance = wide(old_variance).mul(1 - momentum).add(variance, momentum);
    mean.copy_(average);
    invstd.copy_(variance.add(epsilon).rsqrt());
    new_mean.copy_(moved_mean);
    new_variance.copy_(moved_variance);
  });
}

}  // namespace

void provide_layers() {
  provide("Mish", mish);
  provide("MishGrad", mish_grad);
  provide("SoftmaxCrossEntropyWithLogits", softmax_cross_entropy);
  provide("ScaledMaskedSoftmax", scaled_masked_softmax);
  provide("ScaledMaskedSoftmaxGrad", scaled_masked_softmax_grad);
  provide("StrideAdd", stride_add);
  provide("DeepNorm", deep_norm);
  provide("NormalizeBatch", normalize_batch);
  provide("BNTrainingReduce", batch_norm_reduce);
  provide("SyncBatchNormGatherStats", gather_batch_norm_stats);
}

}  // namespace aloft::torch_legacy
