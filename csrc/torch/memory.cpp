// Device memory for CPU kernels: see device.h.
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>

#include "torch/device.h"

namespace aloft::torch_route {
namespace {

thread_local bool results_on_device = false;
std::atomic<c10::DeleterFnPtr> device_deleter{nullptr};

c10::DataPtr labelled(size_t bytes) {
  c10::DataPtr data = c10::GetAllocator(kNpu)->allocate(bytes);
  if (bytes) device_deleter.store(data.get_deleter(), std::memory_order_relaxed);
  return relabel(std::move(data), c10::Device(c10::DeviceType::CPU));
}

class LabelledAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return labelled(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::DeleterFnPtr host_deleter = nullptr;

void free_either(void* memory) {
  const auto device = device_deleter.load(std::memory_order_relaxed);
  (device && memory && aloftDeviceOf(memory) >= 0 ? device : host_deleter)(memory);
}

// torch's CPU allocator, except for large results while ResultsOnDevice asks for device memory.
class SteeredAllocator final : public c10::Allocator {
 public:
  explicit SteeredAllocator(c10::Allocator* host) : host_(host) { host_deleter = host->raw_deleter(); }
  c10::DataPtr allocate(size_t bytes) override {
    if (results_on_device && bytes >= kAdoptBytes) return labelled(bytes);
    return host_->allocate(bytes);
  }
  // For raw_allocate, which forgets the deleter (oneDNN's scratch memory comes that way).
  c10::DeleterFnPtr raw_deleter() const override { return &free_either; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return host_->is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator* host_;
};

}  // namespace

c10::Allocator* labelled_allocator() {
  static auto* allocator = new LabelledAllocator;
  return allocator;
}

ResultsOnDevice::ResultsOnDevice(bool wanted) : before_(results_on_device) { results_on_device = wanted; }
ResultsOnDevice::~ResultsOnDevice() { results_on_device = before_; }

bool is_device_memory(const c10::DataPtr& data) {
  return data.get() && data.get_deleter() == device_deleter.load(std::memory_order_relaxed);
}

c10::DataPtr relabel(c10::DataPtr&& data, c10::Device device) {
  void* address = data.get();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  void* context = data.release_context();
  return c10::DataPtr(address, context, deleter, device);
}

void install_allocator() {
  c10::Allocator* host = c10::GetCPUAllocator();
  if (!dynamic_cast<SteeredAllocator*>(host)) c10::SetCPUAllocator(new SteeredAllocator(host), 0);
}

}  // namespace aloft::torch_route
