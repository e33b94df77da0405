// The C interface of streams, host callbacks and of launch.h.
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "acl/stream.h"
#include "acl/timing.h"

using namespace aloft;

ALOFT_API int aloftLaunchBegin(aclrtStream handle, const char* name, aclError* error) {
  Stream* stream = find_stream(handle, error);
  if (!stream) return kRefused;
  if (stream->diverted.load(std::memory_order_relaxed) || !inline_mode()) return kDefer;
  if (!enter(stream)) return kDefer;
  if (stream->error != kOk) {  // what was queued behind a wait failed, and nobody has been told
    *error = fail_text(stream->error, stream->error_text);
    stream->error = kOk;
    leave(stream);
    return kRefused;
  }
  if (__builtin_expect(g_timing.load(std::memory_order_relaxed), 0)) timing_enter(name);
  return kRunNow;
}

ALOFT_API void aloftLaunchEnd(aclrtStream handle, const char* name, aclError result) {
  if (__builtin_expect(g_timing.load(std::memory_order_relaxed), 0)) timing_leave();
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (stream) leave(stream);
}

ALOFT_API aclError aloftLaunchNode(aclrtStream handle, Node* node) {
  return aloftLaunchTouching(handle, node, nullptr, 0);
}

ALOFT_API aclError aloftLaunchTouching(aclrtStream handle, Node* node, const Touch* touches, size_t count) {
  std::unique_ptr<Node> owned(node);
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if (stream->diverted.load(std::memory_order_relaxed)) return divert(stream, std::move(owned), touches, count);
  return submit(stream, Step{std::move(owned), nullptr, 0});
}

ALOFT_API int aloftPoisonsRecorded(aclrtStream stream) {
  return aloftPoisonSwitch().load(std::memory_order_relaxed) && aloftStreamIsCapturing(stream);
}

ALOFT_API aclError aloftDrainStream(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if ((code = check_capture_allows(stream, "waiting for the stream")) != kOk) return code;
  return synchronize(stream, -1);
}

ALOFT_API int aloftStreamIsCapturing(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  return stream && capturing(stream);
}

ALOFT_API int aloftStreamDefers(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return 0;
  if (stream->diverted.load(std::memory_order_relaxed)) return 1;
  if (stream->pending.load(std::memory_order_relaxed) == 0) return 0;
  return waits_for_host(stream);
}

static aclError create_stream(aclrtStream* handle, uint32_t priority, uint32_t flags) {
  if (!handle) return fail(kInvalidParam, "aclrtCreateStream: stream is null");
  aclError code = kOk;
  Context* context = current_context(&code);
  if (!context) return code;
  Stream* stream = new_stream(context, priority, flags, false);
  if (!stream) {
    return fail(kRtNoStreamResource, "device %d has all of its %d streams in use", context->device,
                settings().profile->max_streams);
  }
  *handle = stream;
  return kOk;
}

ALOFT_API aclError aclrtCreateStream(aclrtStream* stream) { return create_stream(stream, 0, 0); }

// Priorities 0 (highest) to 7 are accepted and have no effect: nothing here competes for cores.
ALOFT_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flags) {
  if (priority > 7) return fail(kInvalidParam, "aclrtCreateStreamWithConfig: priority %u is not in 0..7", priority);
  return create_stream(stream, priority, flags);
}

ALOFT_API aclError aclrtDestroyStream(aclrtStream handle) {
  aclError code = kOk;
  if (!handle) return fail(kInvalidParam, "aclrtDestroyStream: stream is null");
  Stream* stream = find_stream(handle, &code);
  return stream ? destroy_stream(stream, false) : code;
}

ALOFT_API aclError aclrtDestroyStreamForce(aclrtStream handle) {
  aclError code = kOk;
  if (!handle) return fail(kInvalidParam, "aclrtDestroyStreamForce: stream is null");
  Stream* stream = find_stream(handle, &code);
  return stream ? destroy_stream(stream, true) : code;
}

ALOFT_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout_ms) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if ((code = check_capture_allows(stream, "aclrtSynchronizeStream")) != kOk) return code;
  return synchronize(stream, timeout_ms);
}

ALOFT_API aclError aclrtSynchronizeStream(aclrtStream stream) { return aclrtSynchronizeStreamWithTimeout(stream, -1); }

ALOFT_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
  aclError code = kOk;
  Context* context = current_context(&code);
  if (!context) return code;
  if ((code = check_unsafe_call("aclrtSynchronizeDevice")) != kOk) return code;
  return synchronize_context(context, timeout_ms);
}

ALOFT_API aclError aclrtSynchronizeDevice() { return aclrtSynchronizeDeviceWithTimeout(-1); }

// Status 0: all done, 1: not yet.
ALOFT_API aclError aclrtStreamQuery(aclrtStream handle, int* status) {
  if (!status) return fail(kInvalidParam, "aclrtStreamQuery: status is null");
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if ((code = check_capture_allows(stream, "aclrtStreamQuery")) != kOk) return code;
  if (inline_mode() && stream->pending.load() > 0 && !stream->beside.load() && enter(stream)) leave(stream);
  *status = stream->pending.load() == 0 ? 0 : 1;
  return kOk;
}

ALOFT_API aclError aclrtStreamGetId(aclrtStream handle, int32_t* id) {
  if (!id) return fail(kInvalidParam, "aclrtStreamGetId: id is null");
  aclError code = kOk;
  const Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  *id = stream->id;
  return kOk;
}

// 0: go on after a failure, 1: stop. A stream here always stops until the failure has been reported.
ALOFT_API aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if (mode > 1)
    return fail(kInvalidParam, "aclrtSetStreamFailureMode: %llu is not a mode", static_cast<unsigned long long>(mode));
  stream->failure_mode = static_cast<int>(mode);
  return kOk;
}

ALOFT_API aclError aclrtSetStreamOverflowSwitch(aclrtStream handle, uint32_t flag) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  stream->overflow_switch = flag;
  return kOk;
}

ALOFT_API aclError aclrtGetStreamOverflowSwitch(aclrtStream handle, uint32_t* flag) {
  if (!flag) return fail(kInvalidParam, "aclrtGetStreamOverflowSwitch: flag is null");
  aclError code = kOk;
  const Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  *flag = stream->overflow_switch;
  return kOk;
}

// Attributes: 1 failure mode, 2 overflow check, 3 a tag and 4 a switch for operator descriptions in profiles and traces
// (no effect here: a trace of a graph always has the operators' names).
ALOFT_API aclError aclrtSetStreamAttribute(aclrtStream handle, int attribute, const void* value) {
  if (!value) return fail(kInvalidParam, "aclrtSetStreamAttribute: value is null");
  uint32_t word = 0;
  std::memcpy(&word, value, sizeof word);
  if (attribute == 1) return aclrtSetStreamFailureMode(handle, word);
  if (attribute == 2) return aclrtSetStreamOverflowSwitch(handle, word);
  if (attribute != 3 && attribute != 4) {
    return fail(kRtFeatureUnsupported, "aclrtSetStreamAttribute: attribute %d is not known here", attribute);
  }
  aclError code = kOk;
  return find_stream(handle, &code) ? kOk : code;
}

ALOFT_API aclError aclrtResetDevice(int32_t device) {
  aclError code = kOk;
  Context* context = context_of(device, &code);
  if (!context) return code;
  code = synchronize_context(context, -1);
  aclError ignored = kOk;
  if (current_context(&ignored) == context) select_context(nullptr);
  return code;
}

ALOFT_API aclError aclrtResetDeviceForce(int32_t device) { return aclrtResetDevice(device); }

// --- host callbacks -------------------------------------------------------------------------------------------------

namespace {

// The program's function may need locks that the thread holds which waits for the stream (Python's own): a graph with
// one in it runs in the thread that launches it.
class HostFunctionNode final : public SyncNode {
 public:
  HostFunctionNode(void (*function)(void*), void* arguments)
      : SyncNode("host function"), function_(function), arguments_(arguments) {}
  aclError run() override {
    function_(arguments_);
    return kOk;
  }

 private:
  void (*const function_)(void*);
  void* const arguments_;
};

}  // namespace

ALOFT_API aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void*), void* arguments) {
  if (!function) return fail(kInvalidParam, "aclrtLaunchHostFunc: the function is null");
  return aloftLaunchNode(stream, new HostFunctionNode(function, arguments));
}

// A callback runs in stream order. CANN has a thread of the program run it (aclrtProcessReport); here the stream
// runs it itself, so both block types wait for it and the report loop has nothing to do.
ALOFT_API aclError aclrtLaunchCallback(void (*function)(void*), void* data, int block_type, aclrtStream stream) {
  return aclrtLaunchHostFunc(stream, function, data);
}

namespace {
struct Subscriptions {
  std::mutex mutex;
  std::unordered_map<void*, uint64_t> thread_of;
};
Subscriptions& subscriptions() {
  static Subscriptions* const s = new Subscriptions;
  return *s;
}
}  // namespace

ALOFT_API aclError aclrtSubscribeReport(uint64_t thread, aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::lock_guard<std::mutex> lock(subscriptions().mutex);
  if (!subscriptions().thread_of.emplace(stream, thread).second) {
    return fail(107011, "aclrtSubscribeReport: stream %d has a callback thread already", stream->id);
  }
  return kOk;
}

ALOFT_API aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::lock_guard<std::mutex> lock(subscriptions().mutex);
  const auto it = subscriptions().thread_of.find(stream);
  if (it == subscriptions().thread_of.end() || it->second != thread) {
    return fail(107011, "aclrtUnSubscribeReport: thread %llu does not serve stream %d",
                static_cast<unsigned long long>(thread), stream->id);
  }
  subscriptions().thread_of.erase(it);
  return kOk;
}

// Callers loop over this: it takes its time and says that there was nothing to run.
ALOFT_API aclError aclrtProcessReport(int32_t timeout_ms) {
  if (timeout_ms == 0 || timeout_ms < -1) return fail(kInvalidParam, "aclrtProcessReport: timeout %d", timeout_ms);
  std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms < 0 ? 100 : timeout_ms));
  return fail(507012, "aclrtProcessReport: no callback within %d ms (callbacks run on their streams)", timeout_ms);
}
