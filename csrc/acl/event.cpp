#include "acl/event.h"

#include <atomic>
#include <chrono>
#include <shared_mutex>
#include <unordered_set>

namespace aloft {
namespace {

struct Events {
  std::shared_mutex mutex;
  std::unordered_set<Event*> live;
};

Events& events() {
  static Events* const e = new Events;
  return *e;
}

std::shared_ptr<EventState> find_event(aclrtEvent handle, const char* call, aclError* code) {
  Events& all = events();
  std::shared_lock<std::shared_mutex> lock(all.mutex);
  auto* event = static_cast<Event*>(handle);
  if (!event || !all.live.count(event)) {
    *code = fail(kInvalidParam, "%s: %p is not an event", call, handle);
    return nullptr;
  }
  return event->state;
}

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void complete(EventState& state, uint64_t number, aclError error, const std::string& text) {
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    if (number == 0) number = ++state.issued;  // a replayed record
    if (number > state.completed) state.completed = number;
    state.raised = true;
    state.time_ns = now_ns();
    state.error = error;
    state.text = text;
  }
  signal_progress();
}

class RecordNode final : public SyncNode {
 public:
  RecordNode(std::shared_ptr<EventState> state, uint64_t number)
      : SyncNode("aclrtRecordEvent"), state_(std::move(state)), number_(number) {}
  aclError run() override {
    complete(*state_, number_, kOk, "");
    return kOk;
  }
  void skip(aclError error, const std::string& text) override { complete(*state_, number_, error, text); }

 private:
  const std::shared_ptr<EventState> state_;
  const uint64_t number_;
};

class WaitNode final : public SyncNode {
 public:
  WaitNode(std::shared_ptr<EventState> state, uint64_t number)
      : SyncNode("aclrtStreamWaitEvent"), state_(std::move(state)), number_(number) {}
  bool ready() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->external ? state_->raised : state_->completed >= number_;
  }
  aclError run() override { return kOk; }

 private:
  const std::shared_ptr<EventState> state_;
  const uint64_t number_;
};

class ResetNode final : public SyncNode {
 public:
  explicit ResetNode(std::shared_ptr<EventState> state) : SyncNode("aclrtResetEvent"), state_(std::move(state)) {}
  aclError run() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->raised = false;
    return kOk;
  }

 private:
  const std::shared_ptr<EventState> state_;
};

// Nodes of external events go where operators go, into a capture too.
aclError issue(Stream* stream, std::unique_ptr<Node> node) {
  if (stream->diverted.load(std::memory_order_relaxed)) return divert(stream, std::move(node));
  return submit(stream, Step{std::move(node), nullptr, 0});
}

// The time of the last finished record; an error while a later one is on its way.
aclError finished(const std::shared_ptr<EventState>& state, const char* call, uint64_t* time_ns) {
  std::lock_guard<std::mutex> lock(state->mutex);
  if (state->issued == 0 || state->completed < state->issued) {
    return fail(kRtEventTimestamp, "%s: the event %s", call,
                state->issued ? "has not completed yet" : "was never recorded");
  }
  *time_ns = state->time_ns;
  return kOk;
}

}  // namespace

std::unique_ptr<Node> make_record(const std::shared_ptr<EventState>& state, uint64_t number) {
  return std::make_unique<RecordNode>(state, number);
}

std::unique_ptr<Node> make_wait(const std::shared_ptr<EventState>& state, uint64_t number) {
  return std::make_unique<WaitNode>(state, number);
}

}  // namespace aloft

using namespace aloft;

ALOFT_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flags) {
  if (!event) return fail(kInvalidParam, "aclrtCreateEvent: event is null");
  aclError code = kOk;
  const Context* context = current_context(&code);
  if (!context) return code;
  auto* made = new Event{flags, std::make_shared<EventState>()};
  made->state->device = context->device;
  made->state->external = (flags & kEventExternal) != 0;
  {
    std::unique_lock<std::shared_mutex> lock(events().mutex);
    events().live.insert(made);
  }
  *event = made;
  return kOk;
}

ALOFT_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flags) {
  return aclrtCreateEventExWithFlag(event, flags);
}

ALOFT_API aclError aclrtCreateEvent(aclrtEvent* event) { return aclrtCreateEventExWithFlag(event, kEventSync); }

ALOFT_API aclError aclrtDestroyEvent(aclrtEvent event) {
  auto* found = static_cast<Event*>(event);
  {
    std::unique_lock<std::shared_mutex> lock(events().mutex);
    if (!found || !events().live.erase(found))
      return fail(kInvalidParam, "aclrtDestroyEvent: %p is not an event", event);
  }
  delete found;  // records and waits still queued share its state
  return kOk;
}

ALOFT_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream handle) {
  aclError code = kOk;
  const auto state = find_event(event, "aclrtRecordEvent", &code);
  if (!state) return code;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if (state->external) return issue(stream, make_record(state, 0));
  if (stream->diverted.load(std::memory_order_relaxed)) return divert_record(stream, state);
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    number = ++state->issued;
    state->capture.reset();
  }
  if (inline_mode() && enter(stream)) {
    complete(*state, number, stream->error, stream->error_text);  // of a graph that ran beside the host
    leave(stream);
    return kOk;
  }
  return submit(stream, Step{make_record(state, number), nullptr, 0});
}

ALOFT_API aclError aclrtStreamWaitEvent(aclrtStream handle, aclrtEvent event) {
  aclError code = kOk;
  const auto state = find_event(event, "aclrtStreamWaitEvent", &code);
  if (!state) return code;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  if (state->external) return issue(stream, make_wait(state, 0));
  if (stream->diverted.load(std::memory_order_relaxed) || event_captured(state)) return divert_wait(stream, state);
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    number = state->issued;
    if (state->completed >= number) return kOk;
  }
  return submit(stream, Step{make_wait(state, number), nullptr, 0});
}

// For external events, which are reused: in stream order, waits issued later need a new record. A wait for any other
// event names the record it is for, so there is nothing to reset.
ALOFT_API aclError aclrtResetEvent(aclrtEvent event, aclrtStream handle) {
  aclError code = kOk;
  const auto state = find_event(event, "aclrtResetEvent", &code);
  if (!state) return code;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  return state->external ? issue(stream, std::make_unique<ResetNode>(state)) : kOk;
}

ALOFT_API aclError aclrtQueryEventStatus(aclrtEvent event, int* status) {
  if (!status) return fail(kInvalidParam, "aclrtQueryEventStatus: status is null");
  aclError code = kOk;
  const auto state = find_event(event, "aclrtQueryEventStatus", &code);
  if (!state) return code;
  if (event_captured(state)) return fail(kRtEventCaptured, "the event was recorded in a capture and cannot be queried");
  std::lock_guard<std::mutex> lock(state->mutex);
  *status = state->completed >= state->issued ? 1 : 0;  // 1: complete
  if (*status && state->error != kOk) return fail_text(state->error, state->text);
  return kOk;
}

ALOFT_API aclError aclrtQueryEventWaitStatus(aclrtEvent event, int* status) {
  int recorded = 0;
  const aclError code = aclrtQueryEventStatus(event, &recorded);
  if (code == kOk && status) *status = recorded ? 0 : 1;  // 0: complete
  return code;
}

static aclError synchronize_event(aclrtEvent event, int timeout_ms) {
  aclError code = kOk;
  const auto state = find_event(event, "aclrtSynchronizeEvent", &code);
  if (!state) return code;
  if (event_captured(state)) {
    return fail(kRtEventCaptured, "the event was recorded in a capture and cannot be waited for by the host");
  }
  if ((code = check_unsafe_call("aclrtSynchronizeEvent")) != kOk) return code;
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    number = state->issued;
  }
  auto done = [&] {
    std::lock_guard<std::mutex> lock(state->mutex);
    return state->completed >= number;
  };
  const aclError waited = wait_until(done, timeout_ms, "aclrtSynchronizeEvent");
  if (waited != kOk) return waited;
  std::lock_guard<std::mutex> lock(state->mutex);
  return state->error == kOk ? kOk : fail_text(state->error, state->text);
}

ALOFT_API aclError aclrtSynchronizeEvent(aclrtEvent event) { return synchronize_event(event, -1); }

ALOFT_API aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout_ms) {
  return synchronize_event(event, timeout_ms);
}

ALOFT_API aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  if (!ms) return fail(kInvalidParam, "aclrtEventElapsedTime: ms is null");
  aclError code = kOk;
  const auto from = find_event(start, "aclrtEventElapsedTime", &code);
  const auto to = from ? find_event(end, "aclrtEventElapsedTime", &code) : nullptr;
  if (!to) return code;
  uint64_t begin = 0, finish = 0;
  if ((code = finished(from, "aclrtEventElapsedTime", &begin)) != kOk) return code;
  if ((code = finished(to, "aclrtEventElapsedTime", &finish)) != kOk) return code;
  *ms = static_cast<float>((static_cast<double>(finish) - static_cast<double>(begin)) * 1e-6);
  return kOk;
}

// Microseconds of the device clock (here the host's steady clock).
ALOFT_API aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
  if (!timestamp) return fail(kInvalidParam, "aclrtEventGetTimestamp: timestamp is null");
  aclError code = kOk;
  const auto state = find_event(event, "aclrtEventGetTimestamp", &code);
  if (!state) return code;
  uint64_t time_ns = 0;
  if ((code = finished(state, "aclrtEventGetTimestamp", &time_ns)) != kOk) return code;
  *timestamp = time_ns / 1000;
  return kOk;
}
