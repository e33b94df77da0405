// What the fused operators of a decoder layer share: argument checks, scratch.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "acl/launch.h"

namespace aloft::fused {

using Optional = std::optional<at::Tensor>;

// The dtype of the model: float32, float16 or bfloat16, else a ValueError.
void check_dtype(const char* op, const char* name, const at::Tensor& t);
DType dtype_of(const at::Tensor& t);

// A matrix [rows, width] of the model's dtype, dense.
void check_rows(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like, int64_t rows,
                int64_t width);
// On the device of `like`.
void check_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like);
// The same, and of its dtype.
void check_like(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like);
// A dense vector [width] of the model's dtype, on the device of `like`.
void check_vector(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like, int64_t width);
inline bool is_meta(const at::Tensor& t) { return t.device().type() == c10::DeviceType::Meta; }
inline bool given(const Optional& t) { return t && t->defined(); }

inline char* shifted(const void* base, int64_t elements, DType dtype) {
  return static_cast<char*>(const_cast<void*>(base)) + elements * (dtype == DType::F32 ? 4 : 2);
}

// Rows handled at a time: all of them for block_rows 0.
int64_t rows_at_a_time(const char* op, int64_t rows, int64_t block_rows);

// What an array takes in scratch memory.
size_t padded_bytes(int64_t elements, DType dtype);
// Scratch memory. Work that is launched before the tensor dies may use it, as any memory of torch_npu's allocator: it
// is reused by later work of the stream only.
at::Tensor scratch(size_t bytes, const at::Tensor& like);

// Launches `work` on the current stream of the device of `out`; raises what it reports. touches: as launch() takes it.
template <class F, class T>
void run(const char* op, const at::Tensor& out, F&& work, T&& touches);

}  // namespace aloft::fused

#include <c10/core/DeviceGuard.h>

#include "torch/device.h"
#include "torch/touches.h"

template <class F, class T>
void aloft::fused::run(const char* op, const at::Tensor& out, F&& work, T&& touches) {
  const c10::OptionalDeviceGuard guard(out.device());
  const aclError error = launch(torch_route::current_stream(out.device().index()), op, std::forward<F>(work), touches);
  if (error != kOk) torch_route::raise(error, op);
}
