#include "torch/alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/resize_ops.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <dlfcn.h>

#include <cstring>

#include "torch/device.h"

namespace aloft::torch_route {
namespace {

const c10::DispatchKeySet kNpuKeys(c10::DispatchKey::PrivateUse1);

template <class F>
c10::TypedOperatorHandle<F> npu_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<F>();
}

at::Tensor format_cast(const at::Tensor& npu, int64_t format) {
  static const auto cast =
      npu_operator<at::Tensor(const at::Tensor&, int64_t, std::optional<int64_t>, std::optional<int64_t>)>(
          "npu::npu_format_cast");
  return cast.call(npu, format, std::nullopt, std::nullopt);
}

void* torch_npu_symbol(const char* name) {
  void* library = dlopen("libtorch_npu.so", RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : nullptr;
}

// Bytes from the first element to the end of the last one.
size_t extent(const at::Tensor& t) { return at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize()); }

}  // namespace

bool internal_format(int64_t format) {
  switch (format) {
    case -1:  // undefined
    case 0:   // NCHW
    case 1:   // NHWC
    case 2:   // ND
    case 16:  // HWCN
    case 27:  // NDHWC
    case 30:  // NCDHW
    case 47:  // NCL
      return false;
    default:
      return true;
  }
}

int64_t format_of(const at::Tensor& npu) {
  // torch_npu's public function where it has one: the operator sets up a device guard around the same.
  static auto* const direct = reinterpret_cast<int64_t (*)(const at::Tensor&)>(
      torch_npu_symbol("_ZN6at_npu6native14get_npu_formatERKN2at6TensorE"));
  if (C10_LIKELY(direct != nullptr)) return direct(npu);
  static const auto get = npu_operator<int64_t(const at::Tensor&)>("npu::get_npu_format");
  return get.redispatch(kNpuKeys, npu);
}

at::Tensor plain_copy(const at::Tensor& npu, int64_t format) {
  const bool image = format == 3 || format == 4, volume = format == 32 || format == 33;
  at::Tensor plain = format_cast(npu, image ? 0 : volume ? 30 : 2);
  TORCH_CHECK(!internal_format(format_of(plain)), "a tensor in the internal format ", format,
              " could not be converted to a plain layout");
  return plain;
}

at::Tensor view_over(const c10::Storage& storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  at::Tensor view =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), keys, like.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return view;
}

at::Tensor cpu_view(const at::Tensor& npu, c10::StorageImpl* storage) {
  c10::Storage memory;
  if (storage) {
    memory = c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  } else {
    const auto* from = npu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    memory = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), from->nbytes(),
        c10::DataPtr(const_cast<void*>(from->data()), c10::Device(c10::DeviceType::CPU)), labelled_allocator(),
        /*resizable=*/true));
  }
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(std::move(memory),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), npu.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  const auto* original = npu.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(npu.sizes(), npu.strides(), npu.storage_offset());
  if (original->is_conj()) impl->_set_conj(true);
  if (original->is_neg()) impl->_set_neg(true);
  if (original->is_wrapped_number()) impl->set_wrapped_number(true);
  return view;
}

namespace {

// An NPU tensor over `memory` with the geometry of `like`. torch_npu's own factories take several times as long.
at::Tensor over_memory(c10::DataPtr&& memory, size_t bytes, const at::Tensor& like, int64_t offset,
                       c10::Device device) {
  c10::Storage storage(c10::make_storage_impl(c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory),
                                              c10::GetAllocator(kNpu), /*resizable=*/true, device));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), kNpuKeys, like.dtype());
  // The public way to give torch_npu's description of a storage its geometry.
  static const auto set =
      npu_operator<at::Tensor&(at::Tensor&, c10::Storage, c10::SymInt, c10::SymIntArrayRef, c10::SymIntArrayRef)>(
          "aten::set_", "source_Storage_storage_offset");
  return set.redispatch(kNpuKeys, tensor, std::move(storage), offset, c10::fromIntArrayRefSlow(like.sizes()),
                        c10::fromIntArrayRefSlow(like.strides()));
}

}  // namespace

at::Tensor npu_like(const at::Tensor& like, c10::Device device) {
  c10::OptionalDeviceGuard guard;
  if (device.index() != current_device()) guard.reset_device(device);
  const size_t bytes = extent(like);
  return over_memory(c10::GetAllocator(kNpu)->allocate(bytes), bytes, like, 0, device);
}

at::Tensor npu_tensor(at::Tensor&& cpu, c10::Device device) {
  TORCH_CHECK_NOT_IMPLEMENTED(cpu.layout() == c10::Layout::Strided && !cpu.is_quantized(),
                              "the virtual NPU holds dense tensors only, got a result of type ", cpu.toString());
  const c10::Storage& storage = cpu.storage();
  auto* impl = storage.unsafeGetStorageImpl();
  at::Tensor result;
  if (is_device_memory(impl->data_ptr()) && cpu.use_count() == 1 && storage.use_count() == 1) {
    const size_t bytes = impl->nbytes();
    c10::DataPtr memory = impl->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
    result = over_memory(relabel(std::move(memory), device), bytes, cpu, cpu.storage_offset(), device);
  } else {
    result = npu_like(cpu, device);
    if (cpu.numel()) std::memcpy(result.data_ptr(), cpu.const_data_ptr(), extent(cpu));
  }
  if (cpu.is_conj()) result.unsafeGetTensorImpl()->_set_conj(true);
  if (cpu.is_neg()) result.unsafeGetTensorImpl()->_set_neg(true);
  return result;
}

void Views::drain_others(c10::DeviceIndex device) const {
  for (const auto& view : views_) {
    const c10::DeviceIndex other = view.npu.device().index();
    if (other != device && aloftDrainStream(current_stream(other)) != kOk) raise(kOpFailure, "copy between devices");
  }
}

const at::Tensor& Views::add(const at::Tensor& npu, bool written, bool several_devices) {
  c10::StorageImpl* shared = nullptr;
  for (auto& view : views_) {
    if (view.npu.is_same(npu)) {
      view.written |= written;
      return view.cpu;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(npu.layout() == c10::Layout::Strided && npu.has_storage() && !npu.is_quantized(),
                              "the virtual NPU computes with dense tensors only, got layout ", npu.layout());
  TORCH_CHECK(views_.empty() || several_devices || views_[0].npu.device() == npu.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              views_.empty() ? npu.device() : views_[0].npu.device(), " and ", npu.device(), "!");
  View view;
  view.npu = npu;
  view.plain = npu;
  view.written = written;
  view.format = format_of(npu);
  if (C10_UNLIKELY(internal_format(view.format))) view.plain = plain_copy(npu, view.format);
  const auto* storage = view.plain.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (auto& other : views_)
    if (other.plain.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage)
      shared = other.cpu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  view.memory = storage->data();
  TORCH_CHECK(view.memory || npu.numel() == 0, "a tensor of shape ", npu.sizes(),
              " has no memory: its storage was released (an engine sleeps) or resized to 0");
  view.cpu = cpu_view(view.plain, shared);
  views_.push_back(std::move(view));
  return views_.back().cpu;
}

void Views::write_back() {
  for (auto& view : views_) {
    if (!view.written) continue;
    const at::Tensor& cpu = view.cpu;
    at::Tensor& plain = view.plain;
    const bool moved = cpu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data() != view.memory;
    if (C10_UNLIKELY(moved || !cpu.sizes().equals(plain.sizes()) || !cpu.strides().equals(plain.strides()))) {
      at::_ops::resize_::call(plain, c10::fromIntArrayRefSlow(cpu.sizes()), std::nullopt);
      if (!cpu.strides().equals(plain.strides()))
        plain.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
      aloftDrainStream(current_stream(plain.device().index()));  // resize_ copies on the stream
      if (moved && cpu.numel()) std::memcpy(plain.data_ptr(), cpu.const_data_ptr(), extent(cpu));
    }
    if (C10_UNLIKELY(!plain.is_same(view.npu))) {
      TORCH_CHECK(plain.sizes().equals(view.npu.sizes()), "a tensor in the internal format ", view.format,
                  " cannot be resized from ", view.npu.sizes(), " to ", plain.sizes());
      const at::Tensor packed = format_cast(plain, view.format);
      const auto& from = packed.storage();
      const auto& to = view.npu.storage();
      TORCH_CHECK(from.nbytes() == to.nbytes(), "a tensor in the internal format ", view.format,
                  " is not laid out as its shape ", view.npu.sizes(), " asks for");
      aloftDrainStream(current_stream(plain.device().index()));
      std::memcpy(const_cast<void*>(to.data()), from.data(), from.nbytes());
    }
  }
}

void Views::resize(const at::Tensor& cpu, at::IntArrayRef sizes) {
  for (auto& view : views_) {
    if (!view.cpu.is_same(cpu)) continue;
    at::_ops::resize_::call(view.npu, c10::fromIntArrayRefSlow(sizes), std::nullopt);
    auto* storage = view.cpu.storage().unsafeGetStorageImpl();
    const auto& memory = view.npu.storage();
    storage->set_data_ptr_noswap(c10::DataPtr(const_cast<void*>(memory.data()), c10::Device(c10::DeviceType::CPU)));
    storage->set_nbytes(memory.nbytes());
    view.cpu.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, view.npu.strides(), view.npu.storage_offset());
  }
}

bool Views::writes_converted() const {
  for (const auto& view : views_)
    if (view.written && !view.plain.is_same(view.npu)) return true;
  return false;
}

at::Tensor Views::original(const at::Tensor& cpu) const {
  for (const auto& view : views_)
    if (view.cpu.is_same(cpu)) return view.npu;
  if (!cpu.has_storage()) return {};
  const auto* storage = cpu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (const auto& view : views_)
    if (view.cpu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage)
      return view_over(view.plain.storage(),
                       view.plain.key_set().remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative),
                       cpu);
  return {};
}

}  // namespace aloft::torch_route
