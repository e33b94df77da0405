#include "acl/capture.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "acl/beside.h"
#include "acl/timing.h"

namespace aloft {
namespace {

struct Captures {
  std::mutex mutex;  // guards everything about captures, and Stream::capture and task_update
  std::vector<std::shared_ptr<Capture>> active;
  std::set<Model*> models;
  std::map<void*, std::weak_ptr<TaskGroup>> groups;  // by handle
  uint32_t next_id = 1;
};

Captures& captures() {
  static Captures* const c = new Captures;
  return *c;
}

std::atomic<int> g_active{0};  // captures in progress: 0 lets the common paths skip the lock
thread_local int t_mode = kCaptureGlobal;

class GroupNode final : public Node {
 public:
  explicit GroupNode(std::shared_ptr<TaskGroup> group) : Node("task group"), group_(std::move(group)) {}
  aclError run() override {
    std::shared_ptr<NodeVector> nodes;
    {
      std::lock_guard<std::mutex> lock(group_->mutex);
      nodes = group_->nodes;
    }
    for (const auto& node : *nodes) {
      const Timed timed(node->name());
      const aclError code = node->run();
      if (code != kOk) return code;
    }
    return kOk;
  }

 private:
  const std::shared_ptr<TaskGroup> group_;
};

std::string names_of(const NodeVector& nodes) {
  std::string text;
  for (const auto& node : nodes) text += (text.empty() ? "" : ", ") + std::string(node->name());
  return text.empty() ? "nothing" : text;
}

void add_node(Capture& capture, Stream* stream, std::unique_ptr<Node> node) {
  if (capture.group && stream == capture.group_stream) {
    capture.group->nodes->push_back(std::move(node));
    return;
  }
  capture.model->graph->nodes.push_back(std::move(node));
  capture.model->stream_ids.push_back(stream->id);
  ++capture.clocks[stream][stream];
}

void join(const std::shared_ptr<Capture>& capture, Stream* stream) {
  stream->capture = capture;
  stream->diverted = true;
  capture->streams.push_back(stream);
  capture->clocks[stream][stream] = 0;
}

void merge(StreamClock& into, const StreamClock& from) {
  for (const auto& [stream, count] : from) into[stream] = std::max(into[stream], count);
}

std::shared_ptr<Capture> capture_of(const std::shared_ptr<EventState>& state) {
  std::lock_guard<std::mutex> lock(state->mutex);
  return state->capture.lock();
}

// Ends the capture's hold on its streams.
void release_streams(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture.reset();
    stream->diverted = stream->task_update != nullptr;
  }
  auto& active = captures().active;
  active.erase(std::find(active.begin(), active.end(), capture));
  --g_active;
}

void discard(Model* model) {
  model->context->graph_streams -= model->streams_held;
  captures().models.erase(model);
  delete model;
}

aclError begin_capture(Stream* stream, int mode) {
  if (mode < kCaptureGlobal || mode > kCaptureRelaxed) {
    return fail(kInvalidParam, "aclmdlRICaptureBegin: %d is not a capture mode", mode);
  }
  if (stream->default_stream) {
    return fail(kRtCaptureForbids, "aclmdlRICaptureBegin: the default stream cannot be captured");
  }
  std::lock_guard<std::mutex> lock(captures().mutex);
  if (stream->capture) return fail(kRtStreamCaptured, "aclmdlRICaptureBegin: stream %d is being captured", stream->id);
  if (stream->task_update)
    return fail(kRtTaskGroupStatus, "aclmdlRICaptureBegin: stream %d is in a task update", stream->id);
  Context* context = stream->context;
  size_t live = 0;
  {
    std::lock_guard<std::mutex> streams_lock(context->mutex);
    live = context->streams.size();
  }
  if (static_cast<int>(live) + context->graph_streams >= settings().profile->max_streams) {
    return fail(
        kRtNoStreamResource,
        "aclmdlRICaptureBegin: the %d streams of device %d are in use (%zu streams, %d held by captured graphs)",
        settings().profile->max_streams, context->device, live, context->graph_streams.load());
  }
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->model = new Model;
  capture->model->context = context;
  capture->model->graph->id = captures().next_id++;
  captures().models.insert(capture->model);
  captures().active.push_back(capture);
  ++g_active;
  join(capture, stream);
  return kOk;
}

aclError end_capture(Stream* stream, void** handle) {
  std::lock_guard<std::mutex> lock(captures().mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return fail(kRtStreamNotCaptured, "aclmdlRICaptureEnd: stream %d is not being captured", stream->id);
  if (capture->origin != stream) {
    return fail(kRtCaptureUnmatched, "aclmdlRICaptureEnd: the capture began on stream %d, not on stream %d",
                capture->origin->id, stream->id);
  }
  if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id()) {
    return fail(107038, "aclmdlRICaptureEnd: another thread began the capture");
  }
  Model* model = capture->model;
  model->streams_held = static_cast<int>(capture->streams.size());
  model->context->graph_streams += model->streams_held;
  aclError code = kOk;
  if (!capture->broken.empty()) {
    code = fail(kRtCaptureInvalidated, "the capture is invalid: %s", capture->broken.c_str());
  } else if (capture->group) {
    code = fail(kRtTaskGroupStatus, "aclmdlRICaptureEnd: a task group is still open");
  }
  for (Stream* other : capture->streams) {
    if (code == kOk && capture->clocks[stream][other] != capture->clocks[other][other]) {
      code = fail(kRtStreamUnjoined,
                  "aclmdlRICaptureEnd: stream %d took part in the capture and was not joined back to stream %d "
                  "(record an event on it and make stream %d wait for it)",
                  other->id, stream->id, stream->id);
    }
  }
  release_streams(capture);
  if (code != kOk) {
    discard(model);
    return code;
  }
  auto& graph = *model->graph;
  graph.plain = model->groups.empty();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i]->random()) graph.random.push_back(i);
    graph.plain = graph.plain && !graph.nodes[i]->random() && !dynamic_cast<SyncNode*>(graph.nodes[i].get());
  }
  model->complete = true;
  *handle = model;
  return kOk;
}

Model* find_model(void* handle, const char* call, aclError* code) {
  auto* model = static_cast<Model*>(handle);
  if (captures().models.count(model)) return model;
  *code = fail(kRtInvalidHandle, "%s: %p is not a captured graph", call, handle);
  return nullptr;
}

}  // namespace

aclError divert(Stream* stream, std::unique_ptr<Node> node, const Touch* touches, size_t count) {
  // Work that was queued before the capture, or runs beside it, may still need what the node will write.
  const bool writes = std::any_of(touches, touches + count, [](const Touch& t) { return t.use == Use::Writes; });
  const bool poison = writes && aloftPoisonSwitch() && settled(stream->context->device);
  {
    std::lock_guard<std::mutex> lock(captures().mutex);
    if (stream->capture) {
      if (touches) {
        stream->capture->poison.note(touches, count, poison);
      } else if (!dynamic_cast<SyncNode*>(node.get())) {
        stream->capture->poison.note_unknown();
      }
      add_node(*stream->capture, stream, std::move(node));
      return kOk;
    }
    if (stream->task_update) {
      stream->task_update->nodes->push_back(std::move(node));
      return kOk;
    }
  }
  return submit(stream, Step{std::move(node), nullptr, 0});  // the capture ended in between
}

aclError divert_record(Stream* stream, const std::shared_ptr<EventState>& state) {
  std::lock_guard<std::mutex> lock(captures().mutex);
  if (stream->task_update) {
    return fail(kRtTaskGroupStatus, "aclrtRecordEvent: stream %d is in a task update", stream->id);
  }
  if (!stream->capture) return fail(kRtStreamNotCaptured, "aclrtRecordEvent: the capture ended meanwhile");
  const std::shared_ptr<Capture>& capture = stream->capture;
  capture->events[state] = capture->clocks[stream];
  std::lock_guard<std::mutex> state_lock(state->mutex);
  state->capture = capture;
  return kOk;
}

aclError divert_wait(Stream* stream, const std::shared_ptr<EventState>& state) {
  const std::shared_ptr<Capture> recorded_in = capture_of(state);
  std::lock_guard<std::mutex> lock(captures().mutex);
  if (stream->task_update) {
    return fail(kRtTaskGroupStatus, "aclrtStreamWaitEvent: stream %d is in a task update", stream->id);
  }
  if (!stream->capture && !recorded_in) return kOk;  // the capture ended meanwhile
  if (!recorded_in) {
    std::lock_guard<std::mutex> state_lock(state->mutex);
    if (state->issued == 0) return kOk;  // never recorded: nothing to wait for
    return fail(kRtCaptureDependency,
                "aclrtStreamWaitEvent: stream %d is being captured and the event was recorded outside the capture; "
                "make the stream wait before the capture begins",
                stream->id);
  }
  if (stream->capture && stream->capture != recorded_in) {
    return fail(kRtCaptureConflict, "aclrtStreamWaitEvent: the event belongs to another capture");
  }
  if (!stream->capture) {
    if (stream->default_stream) {
      return fail(107031, "aclrtStreamWaitEvent: the default stream cannot join a capture");
    }
    if (stream->context != recorded_in->origin->context) {
      return fail(kRtCaptureDependency, "aclrtStreamWaitEvent: a stream of another device cannot join a capture");
    }
    join(recorded_in, stream);
  }
  merge(recorded_in->clocks[stream], recorded_in->events[state]);
  return kOk;
}

bool event_captured(const std::shared_ptr<EventState>& state) {
  return g_active.load(std::memory_order_relaxed) > 0 && capture_of(state) != nullptr;
}

bool capturing(Stream* stream) {
  if (!stream->diverted.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(captures().mutex);
  return stream->capture != nullptr;
}

aclError check_capture_allows(Stream* stream, const char* what) {
  if (!stream->diverted.load(std::memory_order_relaxed)) return kOk;
  if (!capturing(stream)) {
    return fail(kRtTaskGroupStatus, "%s is not possible on stream %d: a task group of a graph is being updated on it",
                what, stream->id);
  }
  return fail(kRtStreamCaptured, "%s is not possible on stream %d: it is being captured into a graph", what,
              stream->id);
}

// A call that waits for, or writes to, the device outside any stream. The thread's own mode decides: relaxed allows
// it, thread-local asks about captures of this thread, global (the default) also about global captures of others.
aclError check_unsafe_call(const char* what) {
  if (g_active.load(std::memory_order_relaxed) == 0 || t_mode == kCaptureRelaxed) return kOk;
  std::lock_guard<std::mutex> lock(captures().mutex);
  for (const auto& capture : captures().active) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != kCaptureRelaxed;
    if (own || (t_mode == kCaptureGlobal && capture->mode == kCaptureGlobal)) {
      return fail(kRtCaptureForbids, "%s is not possible while stream %d is being captured into a graph", what,
                  capture->origin->id);
    }
  }
  return kOk;
}

void poison_if_capturing(void* address, size_t size) {
  if (g_active.load(std::memory_order_relaxed) > 0 && aloftPoisonSwitch()) std::memset(address, 0xff, size);
}

}  // namespace aloft

using namespace aloft;

ALOFT_API std::atomic<bool>& aloftPoisonSwitch() {
  static const char* const contract = std::getenv("ALOFT_CONTRACT");
  static std::atomic<bool> on{contract && !std::strcmp(contract, "strict")};
  return on;
}

ALOFT_API aclError aclmdlRICaptureBegin(aclrtStream handle, int mode) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  // What its nodes launch is to run, not to be captured.
  if (stream->beside.load(std::memory_order_acquire)) join_beside(stream);
  return begin_capture(stream, mode);
}

ALOFT_API aclError aclmdlRICaptureEnd(aclrtStream handle, void** model) {
  if (!model) return fail(kInvalidParam, "aclmdlRICaptureEnd: the output is null");
  *model = nullptr;
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  return stream ? end_capture(stream, model) : code;
}

// Status 0: not captured, 1: being captured, 2: being captured and invalid.
ALOFT_API aclError aclmdlRICaptureGetInfo(aclrtStream handle, int* status, void** model) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::lock_guard<std::mutex> lock(captures().mutex);
  const auto& capture = stream->capture;
  if (status) *status = !capture ? 0 : capture->broken.empty() ? 1 : 2;
  if (model) *model = capture ? capture->model : nullptr;
  return kOk;
}

ALOFT_API aclError aclmdlRICaptureThreadExchangeMode(int* mode) {
  if (!mode || *mode < kCaptureGlobal || *mode > kCaptureRelaxed) {
    return fail(kInvalidParam, "aclmdlRICaptureThreadExchangeMode: %d is not a capture mode", mode ? *mode : -1);
  }
  std::swap(t_mode, *mode);
  return kOk;
}

ALOFT_API aclError aclmdlRIExecuteAsync(void* handle, aclrtStream stream_handle) {
  const bool beside = take_wish_beside();
  aclError code = kOk;
  Stream* stream = find_stream(stream_handle, &code);
  if (!stream) return code;
  if (stream->diverted.load(std::memory_order_relaxed)) {
    return fail(kRtCaptureForbids, "aclmdlRIExecuteAsync: stream %d is being captured; a graph cannot contain a graph",
                stream->id);
  }
  std::shared_ptr<Graph> graph;
  {
    std::lock_guard<std::mutex> lock(captures().mutex);
    Model* model = find_model(handle, "aclmdlRIExecuteAsync", &code);
    if (!model) return code;
    if (!model->complete) return fail(kRtModelCaptured, "aclmdlRIExecuteAsync: the graph is still being captured");
    graph = model->graph;
  }
  Step step{nullptr, std::move(graph), 0};
  step.beside = beside;
  return submit(stream, std::move(step));
}

ALOFT_API aclError aclmdlRIDestroy(void* handle) {
  aclError code = kOk;
  std::lock_guard<std::mutex> lock(captures().mutex);
  Model* model = find_model(handle, "aclmdlRIDestroy", &code);
  if (!model) return code;
  if (!model->complete) return fail(kRtModelCaptured, "aclmdlRIDestroy: the graph is still being captured");
  for (const auto& group : model->groups) captures().groups.erase(group.get());
  discard(model);  // a replay in progress shares the nodes
  return kOk;
}

ALOFT_API aclError aclmdlRIGetId(void* handle, uint32_t* id) {
  if (!id) return fail(kInvalidParam, "aclmdlRIGetId: id is null");
  aclError code = kOk;
  std::lock_guard<std::mutex> lock(captures().mutex);
  const Model* model = find_model(handle, "aclmdlRIGetId", &code);
  if (!model) return code;
  *id = model->graph->id;
  return kOk;
}

// A trace that trace viewers open: one slice a node, the stream it was captured on as its thread.
ALOFT_API aclError aclmdlRIDebugJsonPrint(void* handle, const char* path, uint32_t flags) {
  if (!path || !*path) return fail(kInvalidParam, "aclmdlRIDebugJsonPrint: the path is empty");
  aclError code = kOk;
  std::lock_guard<std::mutex> lock(captures().mutex);
  const Model* model = find_model(handle, "aclmdlRIDebugJsonPrint", &code);
  if (!model) return code;
  std::FILE* file = std::fopen(path, "w");
  if (!file) return fail(107009, "aclmdlRIDebugJsonPrint: %s cannot be written", path);
  std::fprintf(file, "[");
  const auto& nodes = model->graph->nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::fprintf(file, "%s\n{\"name\": \"%s\", \"ph\": \"X\", \"ts\": %zu, \"dur\": 1, \"pid\": %d, \"tid\": %d}",
                 i ? "," : "", nodes[i]->name(), i, model->context->device, model->stream_ids[i]);
  }
  std::fprintf(file, "\n]\n");
  if (std::fclose(file) != 0) return fail(107010, "aclmdlRIDebugJsonPrint: %s cannot be written", path);
  return kOk;
}

ALOFT_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::lock_guard<std::mutex> lock(captures().mutex);
  const auto& capture = stream->capture;
  if (!capture) {
    return fail(kRtStreamNotCaptured, "aclmdlRICaptureTaskGrpBegin: stream %d is not being captured", stream->id);
  }
  if (capture->group) return fail(kRtTaskGroupStatus, "aclmdlRICaptureTaskGrpBegin: a task group is open already");
  capture->group = std::make_shared<TaskGroup>();
  capture->group_stream = stream;
  return kOk;
}

ALOFT_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream handle, void** group_handle) {
  if (!group_handle) return fail(kInvalidParam, "aclmdlRICaptureTaskGrpEnd: the output is null");
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::lock_guard<std::mutex> lock(captures().mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) {
    return fail(kRtStreamNotCaptured, "aclmdlRICaptureTaskGrpEnd: stream %d is not being captured", stream->id);
  }
  if (!capture->group || capture->group_stream != stream) {
    return fail(kRtTaskGroupStatus, "aclmdlRICaptureTaskGrpEnd: no task group is open on stream %d", stream->id);
  }
  const std::shared_ptr<TaskGroup> group = std::move(capture->group);
  capture->group.reset();
  add_node(*capture, stream, std::make_unique<GroupNode>(group));
  capture->model->groups.push_back(group);
  captures().groups[group.get()] = group;
  *group_handle = group.get();
  return kOk;
}

ALOFT_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, void* group_handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::lock_guard<std::mutex> lock(captures().mutex);
  if (stream->capture) {
    return fail(kRtStreamCaptured, "aclmdlRICaptureTaskUpdateBegin: stream %d is being captured", stream->id);
  }
  if (stream->task_update) {
    return fail(kRtTaskGroupStatus, "aclmdlRICaptureTaskUpdateBegin: stream %d is in a task update already",
                stream->id);
  }
  const auto it = captures().groups.find(group_handle);
  const std::shared_ptr<TaskGroup> group = it == captures().groups.end() ? nullptr : it->second.lock();
  if (!group) return fail(kRtInvalidHandle, "aclmdlRICaptureTaskUpdateBegin: %p is not a task group", group_handle);
  stream->task_update = std::make_shared<TaskUpdate>();
  stream->task_update->group = group;
  stream->diverted = true;
  return kOk;
}

// The exchange takes effect in the order of the update stream, so that a record issued after it releases a replay
// that sees the new nodes.
ALOFT_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
  aclError code = kOk;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  std::shared_ptr<TaskUpdate> update;
  {
    std::lock_guard<std::mutex> lock(captures().mutex);
    if (!stream->task_update) {
      return fail(kRtTaskGroupStatus, "aclmdlRICaptureTaskUpdateEnd: stream %d is in no task update", stream->id);
    }
    update = std::move(stream->task_update);
    stream->task_update.reset();
    stream->diverted = stream->capture != nullptr;
  }
  std::shared_ptr<NodeVector> current;
  {
    std::lock_guard<std::mutex> lock(update->group->mutex);
    current = update->group->nodes;
  }
  bool same = current->size() == update->nodes->size();
  for (size_t i = 0; same && i < current->size(); ++i) {
    same = std::string((*current)[i]->name()) == (*update->nodes)[i]->name();
  }
  if (!same) {
    return fail(kRtModelUpdateFailed, "the task group holds (%s) and cannot be updated with (%s): same operators only",
                names_of(*current).c_str(), names_of(*update->nodes).c_str());
  }
  return launch(handle, "task group update", [update] {
    std::lock_guard<std::mutex> lock(update->group->mutex);
    update->group->nodes = update->nodes;
    return kOk;
  });
}
