// The one choke point. Every unit of device work (an aclnn operator, a copy, a fill, a
// collective, an event record or wait, an operator of the generic host route) goes through
// launch(): it runs at once, is queued, or is recorded into the graph being captured.
// Stream order, capture and (later) virtual time live behind it and nowhere else.
//
// Included by libopapi, libhccl and libaloft_torch; implemented by libascendcl.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "acl/abi.h"
#include "acl/touch.h"

namespace aloft {

// A unit of work that may outlive the call that made it. It owns all it needs; run() may be
// called any number of times (a captured graph replays it) on any thread, one at a time.
class RandomNode;

class Node {
 public:
  explicit Node(const char* name) : name_(name) {}
  virtual ~Node() = default;
  virtual aclError run() = 0;
  // False while the stream must not go past this node yet (a wait for an event or a value). May be asked by any thread.
  virtual bool ready() { return true; }
  virtual RandomNode* random() { return nullptr; }  // this, if it draws random numbers
  const char* name() const { return name_; }        // a string literal: never freed

 private:
  const char* name_;
};

// Where a generator stood for one launch: the numbers follow from it alone.
struct Draw {
  uint64_t seed = 0, offset = 0;
};

// A node that draws random numbers. Its draw is taken when it is launched, or when the graph that holds it is: the
// order of the host's program decides which launch gets which numbers, not the order in which streams come to run.
// (In a task group of a graph, whose nodes may change after the launch, it is taken when the node runs.)
class RandomNode : public Node {
 public:
  using Node::Node;
  virtual aclError draw(Draw* draw) = 0;  // advances the generator
  virtual aclError run_with(const Draw& draw) = 0;
  RandomNode* random() override { return this; }
  aclError run() override {
    Draw now;
    const aclError code = draw(&now);
    return code == kOk ? run_with(now) : code;
  }
};

template <class F>
class FunctionNode final : public Node {
 public:
  FunctionNode(const char* name, F f) : Node(name), f_(std::move(f)) {}
  aclError run() override { return f_(); }

 private:
  F f_;
};

enum LaunchMode : int { kRunNow = 0, kDefer = 1, kRefused = 2 };

}  // namespace aloft

// Asks how `stream` (null: the current context's default stream) wants its next unit of work.
// kRunNow: the caller runs it and must call aloftLaunchEnd with its result (the stream's order is
// held until then). kDefer: the caller hands a Node to aloftLaunchNode. kRefused: the stream is
// broken or not ours; *error has the code and the last-error text is set.
ALOFT_API int aloftLaunchBegin(aclrtStream stream, const char* name, aclError* error);
ALOFT_API void aloftLaunchEnd(aclrtStream stream, const char* name, aclError result);
// Takes ownership of `node`, whatever it returns.
ALOFT_API aclError aloftLaunchNode(aclrtStream stream, aloft::Node* node);
// 1 when what is recorded on `stream` is to be poisoned where it will be written (strict mode, a capture): the node is
// then handed over with all memory it reads or writes. A node without (aloftLaunchNode) ends the poisoning of its
// capture, since nobody knows what it reads.
ALOFT_API int aloftPoisonsRecorded(aclrtStream stream);
ALOFT_API aclError aloftLaunchTouching(aclrtStream stream, aloft::Node* node, const aloft::Touch* touches,
                                       size_t count);

// Waits until `stream` has nothing pending; free of cost when it has nothing (inline mode).
// Refuses with an error while the stream is being captured.
ALOFT_API aclError aloftDrainStream(aclrtStream stream);
// 1 when work for `stream` cannot be done now and has to be handed over as a node: it is being captured or its graph
// updated, or what is queued on it waits for an event or a value that only something issued later can bring about.
// Otherwise 0, once the stream has nothing pending (it waits for that, as aloftDrainStream).
ALOFT_API int aloftStreamDefers(aclrtStream stream);
// 1 while `stream` is being captured into a graph.
ALOFT_API int aloftStreamIsCapturing(aclrtStream stream);
// Sets the text aclGetRecentErrMsg returns in this thread (copied, printf-style).
ALOFT_API void aloftSetError(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Sets that text as it is and `code` as the thread's last error; returns `code`. torch_npu names the last
// error, not the code a call returned, in its exceptions.
ALOFT_API aclError aloftFail(aclError code, const char* text);
// Device of the memory at `address`: >= 0 a device, -1 host memory we know (pinned), -2 unknown.
ALOFT_API int aloftDeviceOf(const void* address);
// 0 when [address, address + size) lies wholly inside one live device allocation.
ALOFT_API int aloftCheckRange(const void* address, size_t size);
// Timing of launched work by name (acl/timing.cpp), and what the work running in this thread reads, writes and
// computes: called by operators that know it, and only while the switch is on.
ALOFT_API std::atomic<bool>& aloftTimingSwitch();
ALOFT_API void aloftTimingAddWork(double bytes, double operations);
// On where ALOFT_CONTRACT is strict: what hardware leaves undefined is filled with a poison pattern.
ALOFT_API std::atomic<bool>& aloftPoisonSwitch();
// Zero-fills memory of any kind. Whole pages of device memory that were never touched stay untouched (they read as
// zero), so clearing fresh memory costs nothing.
ALOFT_API void aloftFillZero(void* address, size_t size);

namespace aloft {

// Tells the timing what the running work amounts to. work: () -> std::pair<double, double>: bytes, operations.
template <class F>
void note_work(F&& work) {
  static const std::atomic<bool>& on = aloftTimingSwitch();
  if (__builtin_expect(on.load(std::memory_order_relaxed), 0)) {
    const auto [bytes, operations] = work();
    aloftTimingAddWork(bytes, operations);
  }
}

// Hands `node` to a stream that takes nodes. touches: () -> a container of Touch, all memory the node reads or writes;
// null: nothing is known of it.
template <class T>
aclError launch_node(aclrtStream stream, Node* node, T&& touches) {
  if constexpr (!std::is_same_v<std::decay_t<T>, std::nullptr_t>) {
    if (aloftPoisonsRecorded(stream)) {
      const auto all = touches();
      return aloftLaunchTouching(stream, node, all.data(), all.size());
    }
  }
  return aloftLaunchNode(stream, node);
}

// f: () -> aclError, copyable or movable, owning what it captures by value. touches: as launch_node takes it; asked
// before this returns, never in a replay.
template <class F, class T = std::nullptr_t>
aclError launch(aclrtStream stream, const char* name, F&& f, T&& touches = nullptr) {
  aclError error = kOk;
  switch (aloftLaunchBegin(stream, name, &error)) {
    case kRunNow: {
      const aclError result = f();
      aloftLaunchEnd(stream, name, result);
      return result;
    }
    case kDefer:
      return launch_node(stream, new FunctionNode<std::decay_t<F>>(name, std::forward<F>(f)), touches);
    default:
      return error;
  }
}

}  // namespace aloft
