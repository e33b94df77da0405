// Convolutions of the legacy door: channels first, 16-bit floats computed with as float32.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>

#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

struct Geometry {
  std::vector<int64_t> stride, dilation, before, after;  // one value a spatial dimension
  int64_t groups;
  bool even() const { return before == after; }
};

Geometry geometry(const Call& call) {
  const std::string layout = text(call, "data_format", "NCHW");
  TORCH_CHECK(layout == "NCHW" || layout == "NCDHW", "data_format ", layout, " is not supported");
  const auto strides = integers(call, "strides"), dilations = integers(call, "dilations"),
             pads = integers(call, "pads");
  Geometry g{{strides.begin() + 2, strides.end()},
             {dilations.begin() + 2, dilations.end()},
             {},
             {},
             integer(call, "groups", 1)};
  TORCH_CHECK(pads.size() == 2 * g.stride.size() && g.dilation.size() == g.stride.size(),
              "strides, dilations and pads do not fit each other");
  for (size_t i = 0; i < pads.size(); i += 2) g.before.push_back(pads[i]), g.after.push_back(pads[i + 1]);
  return g;
}

Work forward(const Call& call) {
  check(call, 2, 1);
  const Geometry g = geometry(call);
  const at::Tensor bias = has_input(call, 2) ? input(call, 2) : at::Tensor();
  return work([=, x = input(call, 0), weight = input(call, 1), y = output(call, 0)] {
    at::Tensor source = wide(x);
    std::vector<int64_t> padding = g.before;
    if (!g.even()) {
      std::vector<int64_t> around;  // the last dimension first
      for (size_t i = g.before.size(); i-- > 0;) around.push_back(g.before[i]), around.push_back(g.after[i]);
      source = at::constant_pad_nd(source, around);
      padding.assign(padding.size(), 0);
    }
    const std::vector<int64_t> none(padding.size(), 0);
    y.copy_(at::convolution(source, wide(weight), bias.defined() ? std::optional<at::Tensor>(wide(bias)) : std::nullopt,
                            g.stride, padding, g.dilation, false, none, g.groups));
  });
}

at::Tensor gradient(const Geometry& g, const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                    bool of_x) {
  TORCH_CHECK(g.even(), "gradients need the same padding on both sides");
  const std::vector<int64_t> none(g.before.size(), 0);
  const auto grads = at::convolution_backward(grad, x, weight, std::nullopt, g.stride, g.before, g.dilation, false,
                                              none, g.groups, {of_x, !of_x, false});
  return of_x ? std::get<0>(grads) : std::get<1>(grads);
}

// (sizes of x, weight, gradient of the result) -> gradient of x.
Work backward_input(const Call& call) {
  check(call, 3, 1);
  const Geometry g = geometry(call);
  return work([=, weight = input(call, 1), grad = input(call, 2), y = output(call, 0)] {
    const at::Tensor w = wide(weight);
    y.copy_(gradient(g, wide(grad), at::empty(y.sizes(), w.options()), w, true));
  });
}

// (x, sizes of the weight, gradient of the result) -> gradient of the weight.
Work backward_filter(const Call& call) {
  check(call, 3, 1);
  const Geometry g = geometry(call);
  return work([=, x = input(call, 0), grad = input(call, 2), y = output(call, 0)] {
    const at::Tensor source = wide(x);
    y.copy_(gradient(g, wide(grad), source, at::empty(y.sizes(), source.options()), false));
  });
}

// (sizes of the result, x, weight, bias): what backward_input does, and a bias.
Work transposed(const Call& call) {
  check(call, 3, 1);
  const Geometry g = geometry(call);
  const at::Tensor bias = has_input(call, 3) ? input(call, 3) : at::Tensor();
  return work([=, x = input(call, 1), weight = input(call, 2), y = output(call, 0)] {
    const at::Tensor w = wide(weight);
    at::Tensor sum = gradient(g, wide(x), at::empty(y.sizes(), w.options()), w, true);
    if (bias.defined()) {
      std::vector<int64_t> shape(static_cast<size_t>(y.dim()), 1);
      shape[1] = -1;
      sum = sum.add(wide(bias).reshape(shape));
    }
    y.copy_(sum);
  });
}

}  // namespace

void provide_convolutions() {
  provide("Conv2D", forward);
  provide("Conv3D", forward);
  provide("Conv2DBackpropInput", backward_input);
  provide("Conv3DBackpropInput", backward_input);
  provide("Conv2DBackpropFilter", backward_filter);
  provide("Conv3DBackpropFilter", backward_filter);
  provide("Conv2DTranspose", transposed);
  provide("Conv3DTranspose", transposed);
}

}  // namespace aloft::torch_legacy
