// What the generic route needs of the device: the current stream, its order, and device memory for CPU kernels.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "acl/launch.h"

namespace aloft::torch_route {

constexpr auto kNpu = c10::DeviceType::PrivateUse1;

// Index of the device this thread works on.
c10::DeviceIndex current_device();
// The native handle of the current stream of `device`. Everything torch_npu queued on its own thread
// for this stream has been issued when this returns.
aclrtStream current_stream(c10::DeviceIndex device);

// While it lives, this thread holds the order of `stream`: all work issued before has finished, none
// issued later has begun. Where streams run on workers, one of them waits for us meanwhile.
class Turn {
 public:
  Turn(aclrtStream stream, const char* name);
  ~Turn();
  // True where a worker waits for us: then nothing may wait for the device before this Turn ends.
  bool holds_worker() const { return baton_ != nullptr; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  aclrtStream stream_;
  const char* name_;
  void* baton_ = nullptr;
};

// Raises the text of the runtime's last error.
[[noreturn]] void raise(aclError code, const char* name);

// A string that lives for ever, as Node names must.
const char* eternal(const std::string& text);

// ---- memory -------------------------------------------------------------------------------------
// An allocator for CPU tensors whose memory is device memory, taken from torch_npu's caching
// allocator (so that it is accounted there) and labelled as CPU memory.
c10::Allocator* labelled_allocator();
// Lets results of at least kAdoptBytes that CPU operators allocate in this thread be device memory.
class ResultsOnDevice {
 public:
  explicit ResultsOnDevice(bool wanted);
  ~ResultsOnDevice();

 private:
  bool before_;
};
constexpr size_t kAdoptBytes = 4 << 10;
// True when `data` came from labelled_allocator() (directly, or through ResultsOnDevice).
bool is_device_memory(const c10::DataPtr& data);
// The same memory, labelled with the device.
c10::DataPtr relabel(c10::DataPtr&& data, c10::Device device);
// Puts the allocator that ResultsOnDevice steers in place of the CPU one. Once, at load.
void install_allocator();

}  // namespace aloft::torch_route
