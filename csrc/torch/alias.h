// NPU tensors seen as CPU tensors over the same memory, and CPU results as NPU tensors.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace aloft::torch_route {

// acl format numbers as torch_npu's get_npu_format reports them.
bool internal_format(int64_t format);
int64_t format_of(const at::Tensor& npu);
// A copy of `npu` in the plain layout that belongs to its format.
at::Tensor plain_copy(const at::Tensor& npu, int64_t format);

// A CPU tensor over `npu`'s memory (sizes, strides, offset, dtype, conjugate and negative bits, wrapped
// number). It does not own the memory. `storage`: the storage to share, or null for a new one.
at::Tensor cpu_view(const at::Tensor& npu, c10::StorageImpl* storage);
// A tensor over `storage` with the geometry of `like`.
at::Tensor view_over(const c10::Storage& storage, c10::DispatchKeySet keys, const at::Tensor& like);
// `cpu` (not a view of anything of ours) as an NPU tensor of the current stream; its memory is adopted
// where it already is device memory and nobody else holds it, and copied otherwise.
at::Tensor npu_tensor(at::Tensor&& cpu, c10::Device device);
// An uninitialised NPU tensor with the geometry of `like`.
at::Tensor npu_like(const at::Tensor& like, c10::Device device);

// The CPU views of one call's tensors: equal tensors and equal storages stay equal, so that aliasing
// among the arguments means to the CPU operator what it means to the caller.
class Views {
 public:
  struct View {
    at::Tensor npu;    // the caller's tensor
    at::Tensor plain;  // what the view is over: `npu`, or its copy in a plain layout
    at::Tensor cpu;
    int64_t format = 2;  // of `npu`
    bool written = false;
    const void* memory = nullptr;  // of `plain`'s storage when the view was made
  };

  // Adds a tensor that lies on the NPU; returns its view. Raises when it lies on another NPU than those before.
  // (unless that is wanted).
  const at::Tensor& add(const at::Tensor& npu, bool written, bool several_devices);
  // Waits for the current streams of the NPUs other than `device`.
  void drain_others(c10::DeviceIndex device) const;
  // Carries what the operator did to the geometry and memory of written views back to the caller's tensors.
  void write_back();
  // The caller's tensor (or a view of it) that `cpu` stands for; undefined when it is something new.
  at::Tensor original(const at::Tensor& cpu) const;

  // Gives the caller's tensor behind `cpu`, and the view itself, another shape (contents are undefined).
  void resize(const at::Tensor& cpu, at::IntArrayRef sizes);
  // True when a tensor in an internal format would have to be written.
  bool writes_converted() const;

  bool empty() const { return views_.empty(); }
  c10::Device device() const { return views_[0].npu.device(); }

 private:
  c10::SmallVector<View, 4> views_;
};

}  // namespace aloft::torch_route
