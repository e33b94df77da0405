// Tensors as the capture of a graph asks for them in strict mode (acl/touch.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "acl/touch.h"

namespace aloft::torch_route {

// Adds `t` as the array it is; nothing for a tensor without elements.
inline void add_touch(Use use, const at::Tensor& t, std::vector<Touch>* to) {
  if (!t.defined() || t.numel() == 0 || !t.const_data_ptr()) return;
  if (t.dim() > Touch::kMostDims) {
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    if (!t.is_non_overlapping_and_dense()) use = Use::Keeps;
    to->push_back(Touch::bytes(use, t.const_data_ptr(), static_cast<size_t>(last + 1) * t.element_size()));
    return;
  }
  Touch touch;
  touch.use = use, touch.data = const_cast<void*>(t.const_data_ptr()), touch.item = t.element_size();
  touch.ndim = static_cast<int>(t.dim());
  for (int d = 0; d < touch.ndim; ++d) touch.sizes[d] = t.size(d), touch.strides[d] = t.stride(d);
  to->push_back(touch);
}

inline at::Tensor or_none(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

// kept: read, or written in part. written: all of it, whatever it held. Undefined tensors are left out.
inline std::vector<Touch> touches(std::initializer_list<at::Tensor> kept, std::initializer_list<at::Tensor> written) {
  std::vector<Touch> all;
  for (const at::Tensor& t : kept) add_touch(Use::Keeps, t, &all);
  for (const at::Tensor& t : written) add_touch(Use::Writes, t, &all);
  return all;
}

}  // namespace aloft::torch_route
