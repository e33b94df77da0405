// Legacy operators that draw random numbers. Their seeds are arguments: torch_npu took them from its generator.
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>

#include "torch/generator.h"
#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

// Bit i of the mask is set with the probability `keep`, lowest bit of each byte first.
void draw_bits(const at::Tensor& mask, double keep, const Draw& draw) {
  const at::Tensor bits = at::rand({mask.numel(), 8}, torch_route::host_generator(draw)).lt(keep).to(at::kByte);
  mask.copy_(bits.bitwise_left_shift(at::arange(8, at::kByte)).sum(1, false, at::kByte).reshape(mask.sizes()));
}

// (shape, probability to keep) with the seeds as attributes -> bits.
Work mask_from_attributes(const Call& call) {
  check(call, 2, 1);
  const Draw draw{static_cast<uint64_t>(integer(call, "seed", 0)), static_cast<uint64_t>(integer(call, "seed2", 0))};
  const double keep = number(call, 1);
  return work([=, y = output(call, 0)] { draw_bits(y, keep, draw); });
}

// (shape, probability to keep, seed, second seed, offset [2]) -> bits.
Work mask_from_inputs(const Call& call) {
  check(call, 5, 1);
  const auto offset = integers(call, size_t{4});
  const Draw draw{static_cast<uint64_t>(number(call, 2)), static_cast<uint64_t>(offset.at(offset.size() - 1))};
  const double keep = number(call, 1);
  return work([=, y = output(call, 0)] { draw_bits(y, keep, draw); });
}

// (x, bits, probability to keep) -> x / keep where the bit is set, else 0.
Work apply_mask(const Call& call) {
  check(call, 3, 1);
  return work([x = input(call, 0), mask = input(call, 1), keep = input(call, 2), y = output(call, 0)] {
    const at::Tensor bits =
        mask.reshape({-1, 1}).bitwise_right_shift(at::arange(8, at::kByte)).bitwise_and(1).reshape(-1);
    const double scale = keep.reshape({}).item().toDouble();
    const at::Tensor kept = bits.narrow(0, 0, x.numel()).reshape(x.sizes()).to(at::kBool);
    y.copy_(scale == 0 ? x.mul(0) : wide(x).div(scale).mul(kept));
  });
}

// Coordinates of up to `count` set elements, drawn without replacement, and which of the rows are filled.
Work choose(const Call& call) {
  check(call, 1, 2);
  const Draw draw{static_cast<uint64_t>(integer(call, "seed", 0)), static_cast<uint64_t>(integer(call, "seed2", 0))};
  return work([=, x = input(call, 0), index = output(call, 0), filled = output(call, 1)] {
    const at::Tensor points = x.nonzero();
    const int64_t count = std::min(points.size(0), index.size(0));
    const at::Tensor order = at::randperm(points.size(0), torch_route::host_generator(draw)).narrow(0, 0, count);
    index.zero_();
    filled.zero_();
    index.narrow(0, 0, count).copy_(points.index_select(0, order));
    filled.narrow(0, 0, count).fill_(true);
  });
}

}  // namespace

void provide_random() {
  provide("DropOutGenMask", mask_from_attributes);
  provide("DropOutGenMaskV3", mask_from_attributes);
  provide("StatelessDropOutGenMask", mask_from_inputs);
  provide("DropOutDoMask", apply_mask);
  provide("DropOutDoMaskV3", apply_mask);
  provide("RandomChoiceWithMask", choose);
}

}  // namespace aloft::torch_legacy
