#include "torch/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_set>

ALOFT_API const char* aclGetRecentErrMsg();

namespace aloft::torch_route {

c10::DeviceIndex current_device() { return c10::impl::getDeviceGuardImpl(kNpu)->getDevice().index(); }

aclrtStream current_stream(c10::DeviceIndex device) {
  const auto* guard = c10::impl::getDeviceGuardImpl(kNpu);
  return guard->getStreamNativeHandle(guard->getStream(c10::Device(kNpu, device)));
}

void raise(aclError code, const char* name) {
  const char* text = aclGetRecentErrMsg();
  TORCH_CHECK(false, name, ": ", text && *text ? text : "the virtual NPU refused the work", " (error code ", code, ")");
}

const char* eternal(const std::string& text) {
  static std::mutex mutex;
  static auto* names = new std::unordered_set<std::string>();
  std::lock_guard<std::mutex> lock(mutex);
  return names->insert(text).first->c_str();
}

namespace {

// A node that stops its stream's worker until the thread that queued it has done its work.
struct Baton {
  std::mutex mutex;
  std::condition_variable changed;
  bool here = false;  // the worker has come to the node
  bool done = false;  // our work is finished, the worker may go on
  int owners = 2;     // the node and the Turn

  void drop() {
    bool last;
    {
      std::lock_guard<std::mutex> lock(mutex);
      last = --owners == 0;
    }
    if (last) delete this;
  }
};

class BatonNode final : public Node {
 public:
  BatonNode(const char* name, Baton* baton) : Node(name), baton_(baton) {}
  ~BatonNode() override {
    {
      std::lock_guard<std::mutex> lock(baton_->mutex);
      baton_->here = true;  // also when the stream dropped the node without running it
    }
    baton_->changed.notify_all();
    baton_->drop();
  }
  aclError run() override {
    std::unique_lock<std::mutex> lock(baton_->mutex);
    baton_->here = true;
    baton_->changed.notify_all();
    baton_->changed.wait(lock, [&] { return baton_->done; });
    return kOk;
  }

 private:
  Baton* baton_;
};

}  // namespace

Turn::Turn(aclrtStream stream, const char* name) : stream_(stream), name_(name) {
  aclError error = kOk;
  switch (aloftLaunchBegin(stream, name, &error)) {  // enters the order once what is queued has run
    case kRunNow:
      return;
    case kDefer:
      break;
    default:
      raise(error, name);
  }
  error = aloftDrainStream(stream);
  if (error != kOk) raise(error, name);
  switch (aloftLaunchBegin(stream, name, &error)) {
    case kRunNow:
      return;
    case kDefer: {
      auto* baton = new Baton;
      error = aloftLaunchNode(stream, new BatonNode(name, baton));
      if (error == kOk) {
        std::unique_lock<std::mutex> lock(baton->mutex);
        baton->changed.wait(lock, [&] { return baton->here; });
        baton_ = baton;
        return;
      }
      baton->drop();
      raise(error, name);
    }
    default:
      raise(error, name);
  }
}

Turn::~Turn() {
  if (!baton_) {
    // What went wrong in the operator is raised in this thread: the stream itself is sound.
    aloftLaunchEnd(stream_, name_, kOk);
    return;
  }
  auto* baton = static_cast<Baton*>(baton_);
  {
    std::lock_guard<std::mutex> lock(baton->mutex);
    baton->done = true;
  }
  baton->changed.notify_all();
  baton->drop();
}

}  // namespace aloft::torch_route
