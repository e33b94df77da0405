// Legacy operators that move, fill or pick elements.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

Work fill(const Call& call) {
  check(call, 2, 1);
  return work([y = output(call, 0), value = input(call, 1)] { y.fill_(value.reshape({})); });
}

Work slice(const Call& call) {
  check(call, 3, 1);
  const auto offsets = integers(call, size_t{1}), sizes = integers(call, size_t{2});
  at::Tensor x = input(call, 0);
  TORCH_CHECK(static_cast<int64_t>(offsets.size()) == x.dim() && sizes.size() == offsets.size(),
              "offsets and sizes must have one value for each of the ", x.dim(), " dimensions");
  for (int64_t i = 0; i < x.dim(); ++i) {
    const int64_t size = sizes[i] < 0 ? x.size(i) - offsets[i] : sizes[i];
    TORCH_CHECK(offsets[i] >= 0 && size >= 0 && offsets[i] + size <= x.size(i), "the part [", offsets[i], ", ",
                offsets[i] + size, ") of dimension ", i, " is out of range, its size is ", x.size(i));
    x = x.narrow(i, offsets[i], size);
  }
  return work([y = output(call, 0), x] { y.copy_(x.reshape(y.sizes())); });
}

Work strided_slice(const Call& call) {
  check(call, 4, 1);
  const auto begin = integers(call, size_t{1}), end = integers(call, size_t{2}), step = integers(call, size_t{3});
  for (const char* mask : {"ellipsis_mask", "new_axis_mask", "shrink_axis_mask"})
    TORCH_CHECK(integer(call, mask, 0) == 0, mask, " is not supported");
  const int64_t from_start = integer(call, "begin_mask", 0), to_end = integer(call, "end_mask", 0);
  at::Tensor x = input(call, 0);
  for (size_t i = 0; i < begin.size(); ++i) {
    const int64_t dim = static_cast<int64_t>(i);
    TORCH_CHECK(step[i] > 0, "steps must be positive");
    x = x.slice(dim, from_start >> i & 1 ? 0 : begin[i], to_end >> i & 1 ? x.size(dim) : end[i], step[i]);
  }
  return work([y = output(call, 0), x] { y.copy_(x.reshape(y.sizes())); });
}

Work broadcast(const Call& call) {
  check(call, 2, 1);
  return work([y = output(call, 0), x = input(call, 0)] { y.copy_(x.expand(y.sizes())); });
}

Work pad(const Call& call) {
  check(call, 2, 1);
  const auto amounts = integers(call, size_t{1});
  const at::Tensor x = input(call, 0), y = output(call, 0);
  TORCH_CHECK(static_cast<int64_t>(amounts.size()) == 2 * x.dim(), "paddings must hold two values a dimension");
  at::Tensor middle = y;
  for (int64_t i = 0; i < x.dim(); ++i) middle = middle.narrow(i, amounts[2 * i], x.size(i));
  return work([=] {
    y.zero_();
    middle.copy_(x);
  });
}

Work confusion_transpose(const Call& call) {
  check(call, 1, 1);
  const auto perm = integers(call, "perm"), shape = integers(call, "shape");
  const bool transpose_first = integer(call, "transpose_first", 0) != 0;
  return work([=, x = input(call, 0), y = output(call, 0)] {
    y.copy_(transpose_first ? x.permute(perm).reshape(shape) : x.reshape(shape).permute(perm));
  });
}

// x seen with the sizes, strides and offset that follow it among the inputs.
at::Tensor strided(const Call& call, const at::Tensor& x, size_t first) {
  return x.as_strided(integers(call, first), integers(call, first + 1), integers(call, first + 2).at(0));
}

Work as_strided(const Call& call) {
  check(call, 4, 1);
  return work([y = output(call, 0), x = strided(call, input(call, 0), 1)] { y.copy_(x); });
}

Work view_copy(const Call& call) {
  check(call, 8, 1);
  const at::Tensor old = input(call, 0), y = output(call, 0);
  return work([=, to = strided(call, y, 1), from = strided(call, input(call, 4), 5)] {
    if (old.const_data_ptr() != y.const_data_ptr()) y.copy_(old);
    to.copy_(from);
  });
}

template <bool largest>
Work extreme(const Call& call) {
  check(call, 1, 2);
  const int64_t dim = integer(call, "dimension", 0);
  const bool keep = integer(call, "keep_dims", 0) != 0;
  return work([=, x = input(call, 0), index = output(call, 0), value = output(call, 1)] {
    const auto [values, indices] = largest ? x.max(dim, keep) : x.min(dim, keep);
    value.copy_(values.reshape(value.sizes()));
    index.copy_(indices.reshape(index.sizes()));
  });
}

// Puts updates where the indices point along one dimension.
Work put_along(const Call& call) {
  check(call, 3, 1);
  const at::Tensor x = input(call, 0);
  const int64_t dim = c10::maybe_wrap_dim(integer(call, "dimension", 0), x.dim());
  return work([=, index = input(call, 1), updates = input(call, 2), y = output(call, 0)] {
    std::vector<int64_t> one = x.sizes().vec();
    one[dim] = 1;
    y.copy_(x.scatter(dim, index.to(at::kLong).reshape(one), updates.to(x.scalar_type()).reshape(one)));
  });
}

Work sort(const Call& call) {
  check(call, 1, 1);
  const int64_t dim = integer(call, "axis", -1);
  const bool descending = integer(call, "descending", 0) != 0;
  return work([=, x = input(call, 0), y = output(call, 0)] { y.copy_(std::get<0>(x.sort(dim, descending))); });
}

// One bit a number, set where it is not negative, lowest bit first; bits beyond the last number are clear.
Work sign_bits_pack(const Call& call) {
  check(call, 1, 1);
  return work([x = input(call, 0), y = output(call, 0)] {
    at::Tensor bits = at::zeros({y.numel() * 8}, at::kByte);
    bits.narrow(0, 0, x.numel()).copy_(x.reshape(-1).ge(0));
    const at::Tensor weights = at::arange(8, at::kByte);
    y.copy_(bits.reshape({-1, 8}).bitwise_left_shift(weights).sum(1, false, at::kByte).reshape(y.sizes()));
  });
}

Work sign_bits_unpack(const Call& call) {
  check(call, 1, 1);
  return work([x = input(call, 0), y = output(call, 0)] {
    const at::Tensor bits =
        x.reshape({-1, 1}).bitwise_right_shift(at::arange(8, at::kByte)).bitwise_and(1).to(at::kFloat);
    y.copy_(bits.mul(2).sub(1).reshape(y.sizes()));
  });
}

// (indices, value on, value off) -> a new dimension of `depth` at `axis`; indices outside it are off everywhere.
Work one_hot(const Call& call) {
  check(call, 3, 1);
  const int64_t depth = integer(call, "depth", 1), axis = integer(call, "axis", -1);
  return work([=, x = input(call, 0), on = input(call, 1), off = input(call, 2), y = output(call, 0)] {
    const at::Tensor hot = x.unsqueeze(-1).eq(at::arange(depth, x.options()));
    y.copy_(on.reshape({}).where(axis < 0 ? hot : hot.movedim(-1, axis), off.reshape({})));
  });
}

}  // namespace

void provide_shapes() {
  provide("OneHotD", one_hot);
  provide("Fill", fill);
  provide("Slice", slice);
  provide("StridedSlice", strided_slice);
  provide("BroadcastTo", broadcast);
  provide("Pad", pad);
  provide("ConfusionTransposeD", confusion_transpose);
  provide("AsStrided", as_strided);
  provide("ViewCopy", view_copy);
  provide("ArgMaxWithValue", extreme<true>);
  provide("ArgMinWithValue", extreme<false>);
  provide("ArgMaxGrad", put_along);
  provide("SortV2", sort);
  provide("SignBitsPack", sign_bits_pack);
  provide("SignBitsUnpack", sign_bits_unpack);
}

}  // namespace aloft::torch_legacy
