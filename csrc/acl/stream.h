// Streams: first-in first-out queues of nodes.
//
// Inline mode runs a node in the thread that issues it, holding the stream's order; a queue forms only
// behind a wait that is not yet satisfied, and whoever satisfies it runs what was queued. Async and fuzz
// mode give each stream a worker thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "acl/state.h"

namespace aloft {

struct Capture;
struct TaskUpdate;

// Nodes that order streams among each other (event records and waits, value writes and waits, callbacks).
class SyncNode : public Node {
 public:
  using Node::Node;
  // The stream failed before this node, or is being torn down: leave nobody waiting for it.
  virtual void skip(aclError error, const std::string& text) {}
};

struct Stream;

// A captured graph as the streams run it.
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<size_t> random;  // which of them draw random numbers
  // Nothing but operators: no node waits, lets others go on, draws a number or calls the program back.
  bool plain = false;
  uint32_t id = 0;
  // The stream that replays it: nodes run one at a time, so a second replay waits for the first.
  std::atomic<Stream*> runner{nullptr};
};

// One entry of a stream's queue: a node, or a graph with the place it has reached.
struct Step {
  std::unique_ptr<Node> node;
  std::shared_ptr<Graph> graph;
  size_t next = 0;
  std::vector<Draw> draws{};  // of its random nodes, in their order
  size_t drawn = 0;           // how many of them are used
  bool beside = false;        // it is to run beside the host, if it can (acl/beside.h)
};

struct Stream {
  Stream(Context* owner, int number, uint32_t wanted_priority, uint32_t wanted_flags, bool is_default)
      : context(owner), id(number), priority(wanted_priority), flags(wanted_flags), default_stream(is_default) {}

  Context* const context;
  const int id;
  const uint32_t priority;
  const uint32_t flags;
  const bool default_stream;

  // Inline mode: held while a node runs. Async mode: guards the queue only.
  std::mutex order;
  std::atomic<std::thread::id> holder{};  // thread inside `order` (inline), so that a node may launch on its own stream
  int depth = 0;
  std::deque<Step> queue;          // guarded by `order`
  std::atomic<size_t> pending{0};  // entries of `queue`, the running one included
  aclError error = kOk;            // guarded by `order`: a failure nobody has been told of
  std::string error_text;
  std::atomic<bool> drop{false};  // what is queued is to be thrown away (deadlock found, forced destruction)

  // Inline: a graph runs, or is about to run, in a thread of its own (acl/beside.h); it counts as pending.
  std::atomic<bool> beside{false};

  std::condition_variable wake;  // async: the worker waits here for entries
  std::condition_variable idle;  // async: the host waits here for the worker
  std::thread worker;
  bool stop = false;
  // The wait at the front that was not ready when last looked at. Cleared with `order` held before the node goes
  // away, so whoever holds `order` may ask it again.
  std::atomic<Node*> blocked_on{nullptr};

  // Capture state, read on every launch.
  std::atomic<bool> diverted{false};        // some of the below is set
  std::shared_ptr<Capture> capture;         // guarded by the capture registry's mutex
  std::shared_ptr<TaskUpdate> task_update;  // set by the thread that updates
  std::atomic<int> failure_mode{0};
  uint32_t cube_limit = 0, vector_limit = 0;
  uint32_t overflow_switch = 0;
};

Stream* new_stream(Context* context, uint32_t priority, uint32_t flags, bool is_default);
// `handle` as a live stream (null: the current context's default stream); null with *code and text set.
Stream* find_stream(aclrtStream handle, aclError* code);
aclError destroy_stream(Stream* stream, bool force);

// Queues or runs `step` in stream order, ignoring capture.
aclError submit(Stream* stream, Step step);
// True when the stream's order was entered and nothing is queued: the caller runs its work, then leave().
bool enter(Stream* stream);
void leave(Stream* stream);
// Waits until nothing is pending. timeout_ms < 0: none. Reports and clears the stream's pending failure.
aclError synchronize(Stream* stream, int timeout_ms);
aclError synchronize_context(Context* context, int timeout_ms);
// Waits until done() holds, helping blocked streams on; kRtEventSyncTimeout when nothing can bring it about any
// more (or after timeout_ms >= 0).
aclError wait_until(const std::function<bool()>& done, int timeout_ms, const char* what);
// Waits until `stream` is idle (false) or can only go on by something that is issued later (true).
bool waits_for_host(Stream* stream);
// Waits until no stream of the device has anything pending, at most for a second (a callback may need the lock that the
// caller holds). False: something is, perhaps because it can only go on by what is issued later.
bool settled(int device);
// Waits until every stream of the device is idle; failures stay for their own synchronisation. For calls that take
// memory away from under queued work.
aclError quiesce(int device, const char* what);
// While it lives, no node of any stream of this process runs (nodes of the calling thread excepted). code() is not kOk
// when queued work cannot finish.
class StoppedStreams {
 public:
  explicit StoppedStreams(const char* what);
  ~StoppedStreams();
  StoppedStreams(const StoppedStreams&) = delete;
  StoppedStreams& operator=(const StoppedStreams&) = delete;
  aclError code() const { return code_; }

 private:
  bool try_hold();
  aclError code_ = kOk;
  std::vector<Stream*> held_;
};
// Something a blocked stream may be waiting for has happened.
void signal_progress();
// Waits for the next progress signal after `seen`, at most until `deadline_ms`; returns the current count.
uint64_t progress();
uint64_t wait_progress(uint64_t seen, int timeout_ms);

// Entry points of capture.cpp.
// Records `node` into the capture or task update the stream is in. Takes ownership. touches: what it does to memory,
// null: not known. (Nodes that only order streams do nothing to memory.)
aclError divert(Stream* stream, std::unique_ptr<Node> node, const Touch* touches = nullptr, size_t count = 0);
bool capturing(Stream* stream);
struct EventState;
aclError divert_record(Stream* stream, const std::shared_ptr<EventState>& state);
aclError divert_wait(Stream* stream, const std::shared_ptr<EventState>& state);
// The event's last record belongs to a capture in progress.
bool event_captured(const std::shared_ptr<EventState>& state);
// kOk, or the error for a call that no capture in progress allows (`what` names the call).
aclError check_capture_allows(Stream* stream, const char* what);
aclError check_unsafe_call(const char* what);
// Fresh device memory: what a capture allocates is its graph's own, and nothing is in it before a replay. In strict
// mode it is filled with NaN (-1 as an integer), so that whoever reads results of a capture notices.
void poison_if_capturing(void* address, size_t size);

}  // namespace aloft
