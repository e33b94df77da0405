// NPU generators seen as CPU generators.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

namespace aloft::torch_route {

// The generator a random operator uses: the caller's, or the default one of `device`.
at::Generator npu_generator(const c10::IValue& given, c10::Device device);
// A CPU generator whose stream of numbers follows from the seed and the offset of `npu`, and from
// nothing else; `npu` is advanced. Borrowed until the next call in this thread.
at::Generator host_generator(const at::Generator& npu);

}  // namespace aloft::torch_route
