// NPU generators seen as CPU generators.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "acl/launch.h"

namespace aloft::torch_route {

// The generator a random operator uses: the caller's, or the default one of `device`.
at::Generator npu_generator(const c10::IValue& given, c10::Device device);
// Where `npu` stands, for one launch of one operator; `npu` is advanced.
Draw take_draw(const at::Generator& npu);
// A CPU generator whose stream of numbers follows from `draw` and from nothing else. Borrowed until the next call in
// this thread.
at::Generator host_generator(const Draw& draw);

}  // namespace aloft::torch_route
