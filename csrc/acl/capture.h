// Graph capture: nodes launched on a captured stream are kept instead of run.
//
// A graph is the list of its nodes in the order they were launched, over all streams of the capture. That order
// respects every dependency (an event is recorded before it is waited for), so replay runs the list one by one on the
// stream it is given, and events inside the capture need no node. Vector clocks over the captured streams find streams
// that were not joined back.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "acl/event.h"
#include "acl/poison.h"
#include "acl/stream.h"

namespace aloft {

enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

using NodeVector = std::vector<std::unique_ptr<Node>>;
using StreamClock = std::map<const Stream*, uint64_t>;

// Nodes that can be replaced between replays.
struct TaskGroup {
  std::mutex mutex;
  std::shared_ptr<NodeVector> nodes = std::make_shared<NodeVector>();
};

struct Model;

struct Capture {
  Stream* origin = nullptr;
  int mode = kCaptureGlobal;
  std::thread::id thread;
  Model* model = nullptr;
  std::vector<Stream*> streams;                               // the origin first
  std::map<const Stream*, StreamClock> clocks;                // what each stream is behind of
  std::map<std::shared_ptr<EventState>, StreamClock> events;  // at their last record
  std::shared_ptr<TaskGroup> group;                           // being filled
  Stream* group_stream = nullptr;
  CapturePoison poison;
  std::string broken;  // not empty: why the capture is invalid
};

// What aclmdlRI handles point to.
struct Model {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::vector<int> stream_ids;  // of each node, for the trace
  std::vector<std::shared_ptr<TaskGroup>> groups;
  Context* context = nullptr;
  int streams_held = 0;  // device streams the graph occupies
  bool complete = false;
};

// A group being replaced on an update stream.
struct TaskUpdate {
  std::shared_ptr<TaskGroup> group;
  std::shared_ptr<NodeVector> nodes = std::make_shared<NodeVector>();
};

}  // namespace aloft
