#include "acl/stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <shared_mutex>
#include <unordered_set>

#include "acl/beside.h"
#include "acl/timing.h"

namespace aloft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Streams {
  std::shared_mutex mutex;
  std::unordered_set<Stream*> live;
  std::atomic<uint64_t> generation{1};  // changes when a stream dies: cached look-ups expire
  std::atomic<int> blocked{0};          // inline mode: entries queued over all streams
  std::atomic<int> next_id{0};

  std::mutex progress_mutex;
  std::condition_variable progress_changed;
  std::atomic<uint64_t> progress{0};
  std::atomic<int> progress_waiters{0};
};

Streams& streams() {
  static Streams* const s = new Streams;
  return *s;
}

bool mine(const Stream* stream) { return stream->holder.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

enum class Advance { Done, Blocked };

// Runs `step` as far as it goes. *error in: a failure to skip over (kOk: none); out: the first failure.
Advance advance(Stream* stream, Step& step, aclError* error, std::string* text) {
  auto run_one = [&](Node* node) {
    if (*error != kOk) {
      if (auto* sync = dynamic_cast<SyncNode*>(node)) sync->skip(*error, *text);
      return true;
    }
    if (!node->ready()) {
      stream->blocked_on.store(node);
      return false;
    }
    // Before what follows the wait runs: inside a graph that may be the reset of the very value waited for.
    if (stream->blocked_on.load(std::memory_order_relaxed)) stream->blocked_on.store(nullptr);
    const Timed timed(node->name());
    RandomNode* random = node->random();
    const aclError result = random ? random->run_with(step.draws[step.drawn++]) : node->run();
    if (result != kOk) {
      *error = result;
      *text = last_error_text();
      if (text->empty()) *text = std::string(node->name()) + " failed with code " + std::to_string(result);
    }
    return true;
  };
  if (step.node) return run_one(step.node.get()) ? Advance::Done : Advance::Blocked;
  Graph& graph = *step.graph;
  Stream* runner = nullptr;
  if (!graph.runner.compare_exchange_strong(runner, stream) && runner != stream && *error == kOk) {
    static class Busy final : public Node {
     public:
      Busy() : Node("aclmdlRIExecuteAsync (the graph still runs on another stream)") {}
      aclError run() override { return kOk; }
      bool ready() override { return false; }
    } busy;
    stream->blocked_on.store(&busy);
    return Advance::Blocked;
  }
  const size_t count = graph.nodes.size();
  const bool beside = stream->beside.load(std::memory_order_relaxed);
  for (size_t i = step.next; i < count; ++i) {
    if (beside && given_up_beside()) break;
    if (!run_one(graph.nodes[i].get())) {
      step.next = i;
      return Advance::Blocked;
    }
  }
  runner = stream;
  if (graph.runner.compare_exchange_strong(runner, nullptr)) signal_progress();
  return Advance::Done;
}

void drop_locked(Stream* stream, aclError error, const std::string& text) {
  for (Step& step : stream->queue) {
    aclError code = error;
    std::string copy = text;
    advance(stream, step, &code, &copy);
  }
  const size_t n = stream->queue.size();
  stream->queue.clear();
  stream->pending -= n;
  if (inline_mode()) streams().blocked -= static_cast<int>(n);
  stream->blocked_on = nullptr;
}

// Inline mode, order held: runs what is queued until a wait blocks.
void drain_locked(Stream* stream) {
  while (!stream->queue.empty()) {
    if (advance(stream, stream->queue.front(), &stream->error, &stream->error_text) == Advance::Blocked) return;
    stream->blocked_on.store(nullptr);
    stream->queue.pop_front();
    --stream->pending;
    --streams().blocked;
  }
}

void acquire(Stream* stream) {
  for (;;) {
    if (stream->beside.load(std::memory_order_acquire)) join_beside(stream);
    stream->order.lock();
    if (!stream->beside.load(std::memory_order_relaxed)) break;
    stream->order.unlock();  // launched by another thread in between
  }
  stream->holder.store(std::this_thread::get_id(), std::memory_order_relaxed);
  stream->depth = 1;
}

void release(Stream* stream) {
  stream->depth = 0;
  stream->holder.store(std::thread::id(), std::memory_order_relaxed);
  stream->order.unlock();
}

// Inline mode, no order held by this thread... or one that is not drained here: runs every queued entry that can run.
void resume_blocked() {
  Streams& all = streams();
  for (bool moved = true; moved && all.blocked.load() > 0;) {
    moved = false;
    std::vector<Stream*> waiting;
    {
      std::shared_lock<std::shared_mutex> lock(all.mutex);
      for (Stream* stream : all.live) {
        // A stream that cannot be entered is held by a thread that resumes it when it leaves.
        if (stream->pending.load() == 0 || mine(stream) || stream->beside.load() || !stream->order.try_lock()) continue;
        if (stream->beside.load()) {
          stream->order.unlock();
        } else {
          waiting.push_back(stream);
        }
      }
    }
    for (Stream* stream : waiting) {
      stream->holder.store(std::this_thread::get_id(), std::memory_order_relaxed);
      stream->depth = 1;
      const size_t before = stream->pending.load();
      drain_locked(stream);
      moved = moved || stream->pending.load() < before;
      release(stream);
    }
  }
}

void run_worker(Stream* stream) {
  select_context(stream->context);
  const bool fuzz = settings().streams == StreamMode::Fuzz;
  std::minstd_rand random(static_cast<unsigned>(settings().fuzz_seed * 7919 + stream->id * 104729 + 1));
  std::unique_lock<std::mutex> lock(stream->order);
  for (;;) {
    stream->wake.wait(lock, [&] { return stream->stop || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
    if (stream->drop) {
      drop_locked(stream, kRtStreamSyncTimeout, "the stream was given up");
      stream->drop = false;
      stream->idle.notify_all();
      continue;
    }
    Step& step = stream->queue.front();  // stays valid: a deque keeps its entries in place when it grows
    aclError error = stream->error;
    std::string text = stream->error_text;
    lock.unlock();
    if (fuzz) {
      const unsigned draw = random() % 64;
      if (draw < 24) std::this_thread::sleep_for(std::chrono::microseconds(random() % (draw == 0 ? 4000 : 250)));
    }
    const uint64_t seen = progress();
    const Advance result = advance(stream, step, &error, &text);
    if (result == Advance::Blocked) {
      wait_progress(seen, 200);
      lock.lock();
      continue;
    }
    lock.lock();
    stream->blocked_on.store(nullptr);
    lock.unlock();
    step = Step();  // destroyed while the lock is not held, and before anyone is told that it is done
    lock.lock();
    if (error != kOk && stream->error == kOk) {
      stream->error = error;
      stream->error_text = text;
    }
    stream->queue.pop_front();
    --stream->pending;
    if (stream->queue.empty()) stream->idle.notify_all();
    signal_progress();
  }
}

pid_t g_owner = 0;

// At exit every worker ends before static objects of other libraries go away.
void stop_workers() {
  if (g_forked || getpid() != g_owner) return;
  std::vector<Stream*> all;
  {
    std::shared_lock<std::shared_mutex> lock(streams().mutex);
    all.assign(streams().live.begin(), streams().live.end());
  }
  for (Stream* stream : all) {
    if (!stream->worker.joinable() || stream->worker.get_id() == std::this_thread::get_id()) continue;
    {
      std::lock_guard<std::mutex> lock(stream->order);
      stream->stop = stream->drop = true;
      stream->wake.notify_all();
    }
    signal_progress();
    stream->worker.join();
  }
}

// Nobody runs anything and the streams that hold work all wait for what has not come.
bool all_blocked() {
  std::shared_lock<std::shared_mutex> lock(streams().mutex);
  for (Stream* stream : streams().live) {
    if (stream->pending.load() == 0) continue;
    std::unique_lock<std::mutex> order(stream->order, std::try_to_lock);
    if (!order.owns_lock()) return false;  // at work
    Node* wait = stream->blocked_on.load();
    if (stream->pending.load() == 0) continue;
    if (!wait || wait->ready() || stream->blocked_on.load() != wait) return false;  // the last: it has just gone on
  }
  return true;
}

aclError take_error_locked(Stream* stream) {
  if (stream->error == kOk) return kOk;
  const aclError code = fail_text(stream->error, stream->error_text);
  stream->error = kOk;
  stream->error_text.clear();
  return code;
}

aclError report_deadlock(Stream* stream) {
  std::string name = "a wait";
  {
    std::lock_guard<std::mutex> lock(stream->order);
    if (Node* wait = stream->blocked_on.load()) name = wait->name();
  }
  const size_t behind = stream->pending.load() ? stream->pending.load() - 1 : 0;
  return fail(kRtStreamSyncTimeout,
              "stream %d of device %d waits in %s for something that nothing queued can bring about (a record or a "
              "write that is missing, or issued after this synchronisation); %zu operations behind it are dropped",
              stream->id, stream->context->device, name.c_str(), behind);
}

}  // namespace

uint64_t progress() { return streams().progress.load(); }

void signal_progress() {
  Streams& s = streams();
  s.progress.fetch_add(1);
  if (s.progress_waiters.load() > 0) {
    std::lock_guard<std::mutex> lock(s.progress_mutex);
    s.progress_changed.notify_all();
  }
}

uint64_t wait_progress(uint64_t seen, int timeout_ms) {
  Streams& s = streams();
  std::unique_lock<std::mutex> lock(s.progress_mutex);
  ++s.progress_waiters;
  s.progress_changed.wait_for(lock, milliseconds(timeout_ms), [&] { return s.progress.load() != seen; });
  --s.progress_waiters;
  return s.progress.load();
}

Stream* new_stream(Context* context, uint32_t priority, uint32_t flags, bool is_default) {
  Streams& s = streams();
  auto* stream = new Stream(context, s.next_id.fetch_add(1), priority, flags, is_default);
  {
    std::lock_guard<std::mutex> lock(context->mutex);
    if (static_cast<int>(context->streams.size()) + context->graph_streams >= settings().profile->max_streams) {
      delete stream;
      return nullptr;
    }
    context->streams.push_back(stream);
  }
  {
    std::unique_lock<std::shared_mutex> lock(s.mutex);
    s.live.insert(stream);
  }
  if (!inline_mode()) {
    static std::once_flag once;
    std::call_once(once, [] {
      g_owner = getpid();
      std::atexit(stop_workers);
    });
    stream->worker = std::thread(run_worker, stream);
  }
  return stream;
}

Stream* find_stream(aclrtStream handle, aclError* code) {
  if (g_forked) {
    usable(code);
    return nullptr;
  }
  if (!handle) {
    Context* context = current_context(code);
    return context ? context->default_stream : nullptr;
  }
  thread_local void* last = nullptr;
  thread_local uint64_t last_generation = 0;
  Streams& s = streams();
  const uint64_t generation = s.generation.load(std::memory_order_acquire);
  if (handle == last && generation == last_generation) return static_cast<Stream*>(handle);
  std::shared_lock<std::shared_mutex> lock(s.mutex);
  if (!s.live.count(static_cast<Stream*>(handle))) {
    *code = fail(kRtStreamContext, "%p is not a stream of this process", handle);
    return nullptr;
  }
  last = handle;
  last_generation = generation;
  return static_cast<Stream*>(handle);
}

aclError destroy_stream(Stream* stream, bool force) {
  if (stream->default_stream) return fail(kInvalidParam, "the default stream of a device cannot be destroyed");
  if (stream->diverted.load()) {
    return fail(kRtStreamCaptured, "stream %d is being captured and cannot be destroyed", stream->id);
  }
  aclError result = kOk;
  if (!force) result = synchronize(stream, -1);
  Streams& s = streams();
  {
    std::unique_lock<std::shared_mutex> lock(s.mutex);
    s.live.erase(stream);
    s.generation.fetch_add(1, std::memory_order_release);
  }
  {
    std::lock_guard<std::mutex> lock(stream->context->mutex);
    auto& list = stream->context->streams;
    list.erase(std::find(list.begin(), list.end(), stream));
  }
  if (stream->worker.joinable()) {
    {
      std::lock_guard<std::mutex> lock(stream->order);
      stream->stop = true;
      stream->drop = force;
      stream->wake.notify_all();
    }
    signal_progress();
    stream->worker.join();
  } else {
    if (stream->beside.load()) {
      if (force) give_up_beside(stream);
      join_beside(stream);
    }
    std::lock_guard<std::mutex> lock(stream->order);
    drop_locked(stream, kRtStreamContext, "the stream was destroyed");
  }
  signal_progress();
  delete stream;
  if (inline_mode() && s.blocked.load() > 0) resume_blocked();
  return result;
}

bool enter(Stream* stream) {
  if (mine(stream)) {
    ++stream->depth;
    return true;
  }
  acquire(stream);
  if (stream->queue.empty()) return true;
  drain_locked(stream);
  if (stream->queue.empty()) return true;
  release(stream);
  return false;
}

void leave(Stream* stream) {
  if (stream->depth > 1) {
    --stream->depth;
    return;
  }
  release(stream);
  if (streams().blocked.load() > 0) resume_blocked();
}

namespace {

// Takes the draws of what is launched, in the order of the host's program.
aclError take_draws(Step* step) {
  auto take = [&](Node* node) { return node->random()->draw(&step->draws.emplace_back()); };
  if (step->node) return step->node->random() ? take(step->node.get()) : kOk;
  step->draws.reserve(step->graph->random.size());
  for (const size_t at : step->graph->random) {
    const aclError code = take(step->graph->nodes[at].get());
    if (code != kOk) return code;
  }
  return kOk;
}

}  // namespace

aclError submit(Stream* stream, Step step) {
  if (const aclError code = take_draws(&step); code != kOk) return code;
  if (inline_mode()) {
    if (enter(stream)) {
      aclError error = take_error_locked(stream);
      std::string text;
      if (error == kOk && step.beside && stream->depth == 1 && run_beside(stream, step)) {
        release(stream);
        return kOk;
      }
      if (error == kOk) {
        if (advance(stream, step, &error, &text) == Advance::Blocked) {
          stream->queue.push_back(std::move(step));
          ++stream->pending;
          ++streams().blocked;
        }
        if (error != kOk) fail_text(error, text);
      }
      leave(stream);
      return error;
    }
    acquire(stream);
    stream->queue.push_back(std::move(step));
    ++stream->pending;
    ++streams().blocked;
    release(stream);
    resume_blocked();
    return kOk;
  }
  std::lock_guard<std::mutex> lock(stream->order);
  stream->queue.push_back(std::move(step));
  ++stream->pending;
  stream->wake.notify_one();
  return kOk;
}

void begin_beside(Stream* stream) {
  ++stream->pending;
  ++streams().blocked;
  stream->beside.store(true, std::memory_order_release);
}

void finish_beside(Stream* stream, Step step, const std::function<void()>& over) {
  stream->order.lock();
  stream->holder.store(std::this_thread::get_id(), std::memory_order_relaxed);
  stream->depth = 1;
  aclError error = stream->error;
  std::string text = stream->error_text;
  advance(stream, step, &error, &text);  // never blocked: a plain graph, which run_beside has taken for this stream
  step = Step();                         // destroyed before anyone is told that it is done
  if (stream->error == kOk && error != kOk) {
    stream->error = error;
    stream->error_text = text;
  }
  release(stream);
  over();
  --stream->pending;
  --streams().blocked;
  stream->beside.store(false, std::memory_order_release);  // from here on the stream may go away
  signal_progress();
  if (streams().blocked.load() > 0) resume_blocked();
}

aclError synchronize(Stream* stream, int timeout_ms) {
  if (inline_mode() && mine(stream)) return kOk;  // a node asks about its own stream: it is what is running
  const auto start = Clock::now();
  auto still = start;  // when the last progress was seen
  uint64_t seen = progress();
  for (bool first = true;; first = false) {
    const uint64_t before = progress();
    {
      std::unique_lock<std::mutex> lock(stream->order, std::defer_lock);
      if (inline_mode()) {
        if (stream->beside.load() && timeout_ms >= 0 && !join_beside(stream, timeout_ms)) {
          return fail(kRtStreamSyncTimeout, "stream %d of device %d still ran a graph after %d ms", stream->id,
                      stream->context->device, timeout_ms);
        }
        acquire(stream);
        drain_locked(stream);
        if (stream->queue.empty()) {
          const aclError code = take_error_locked(stream);
          leave(stream);
          return code;
        }
        leave(stream);
        if (stream->pending.load() == 0) continue;
      } else {
        lock.lock();
        stream->idle.wait_for(lock, milliseconds(timeout_ms >= 0 ? std::min(timeout_ms, 20) : 20),
                              [&] { return stream->queue.empty(); });
        if (stream->queue.empty()) return take_error_locked(stream);
      }
    }
    const auto now = Clock::now();
    const uint64_t current = progress();
    if (current != seen) {
      seen = current;
      still = now;
    }
    if (timeout_ms >= 0 && now - start >= milliseconds(timeout_ms)) {
      return fail(kRtStreamSyncTimeout, "stream %d of device %d still had %zu operations after %d ms", stream->id,
                  stream->context->device, stream->pending.load(), timeout_ms);
    }
    // One host thread that waits here can issue nothing more; with others about, give them time.
    const double patience = host_threads() > 1 ? settings().wait_timeout_s : (inline_mode() ? 0 : 0.2);
    if (timeout_ms < 0 && !first && std::chrono::duration<double>(now - still).count() >= patience && all_blocked() &&
        progress() == before) {  // else what it waits for may have come after we looked
      const aclError code = report_deadlock(stream);
      const std::string text = last_error_text();
      if (inline_mode()) {
        acquire(stream);
        drop_locked(stream, code, text);
        stream->error = kOk;
        leave(stream);
      } else {
        std::unique_lock<std::mutex> lock(stream->order);
        stream->drop = true;
        signal_progress();
        stream->idle.wait(lock, [&] { return stream->queue.empty(); });
        stream->error = kOk;
      }
      return fail_text(code, text);
    }
    if (inline_mode()) wait_progress(seen, first ? 0 : (timeout_ms >= 0 ? std::min(timeout_ms, 5) : 20));
  }
}

aclError wait_until(const std::function<bool()>& done, int timeout_ms, const char* what) {
  if (done()) return kOk;
  const auto start = Clock::now();
  auto still = start;
  uint64_t seen = progress();
  for (;;) {
    if (inline_mode() && streams().blocked.load() > 0) resume_blocked();
    if (done()) return kOk;
    const uint64_t current = wait_progress(seen, 5);
    const auto now = Clock::now();
    if (current != seen) {
      seen = current;
      still = now;
      continue;
    }
    if (timeout_ms >= 0) {
      if (now - start >= milliseconds(timeout_ms)) {
        return fail(kRtEventSyncTimeout, "%s gave up after %d ms", what, timeout_ms);
      }
      continue;
    }
    const double patience = host_threads() > 1 ? settings().wait_timeout_s : (inline_mode() ? 0 : 0.2);
    if (std::chrono::duration<double>(now - still).count() >= patience && all_blocked() && progress() == seen) {
      std::string names;
      {
        std::shared_lock<std::shared_mutex> lock(streams().mutex);
        for (Stream* stream : streams().live) {
          std::unique_lock<std::mutex> order(stream->order, std::try_to_lock);
          Node* wait = order.owns_lock() ? stream->blocked_on.load() : nullptr;
          if (stream->pending.load() > 0 && wait) {
            names += " stream " + std::to_string(stream->id) + " waits in " + wait->name() + ";";
          }
        }
      }
      return fail(kRtEventSyncTimeout, "%s would wait for ever:%s nothing queued can bring it about", what,
                  names.c_str());
    }
  }
}

bool waits_for_host(Stream* stream) {
  for (;;) {
    const uint64_t seen = progress();
    if (inline_mode()) {
      if (enter(stream)) {
        leave(stream);
        return false;
      }
    } else if (stream->pending.load() == 0) {
      return false;
    }
    if (all_blocked() && progress() == seen) return stream->pending.load() > 0;
    wait_progress(seen, 2);
  }
}

bool settled(int device) {
  join_beside(device);
  const auto until = Clock::now() + std::chrono::seconds(1);
  for (;;) {
    const uint64_t seen = progress();
    bool pending = false;
    {
      std::shared_lock<std::shared_mutex> lock(streams().mutex);
      for (const Stream* stream : streams().live) {
        pending = pending || (stream->context->device == device && stream->pending.load() > 0);
      }
    }
    if (!pending) return true;
    if ((all_blocked() && progress() == seen) || Clock::now() > until) return false;
    wait_progress(seen, 2);
  }
}

aclError quiesce(int device, const char* what) {
  if (inline_mode() && streams().blocked.load() == 0) return kOk;
  join_beside(device);
  return wait_until(
      [device] {
        std::shared_lock<std::shared_mutex> lock(streams().mutex);
        for (Stream* stream : streams().live) {
          if (stream->context->device == device && stream->pending.load() > 0 && !mine(stream)) return false;
        }
        return true;
      },
      -1, what);
}

StoppedStreams::StoppedStreams(const char* what) {
  code_ = wait_until([this] { return try_hold(); }, -1, what);
}

// All or none: a node that holds its own stream may be waiting to enter another.
bool StoppedStreams::try_hold() {
  Streams& all = streams();
  all.mutex.lock_shared();  // kept: no stream comes or goes meanwhile
  bool whole = true;
  for (Stream* stream : all.live) {
    if (mine(stream)) continue;
    whole = stream->order.try_lock();
    if (!whole) break;
    held_.push_back(stream);
    // A worker runs its entry without holding the order; inline, what is queued waits and cannot go on meanwhile.
    // So does the thread that runs a graph beside the host, until it has the order.
    if ((!inline_mode() || stream->beside.load()) && stream->pending.load() > 0) {
      whole = false;
      break;
    }
  }
  if (whole) return true;
  for (Stream* stream : held_) stream->order.unlock();
  held_.clear();
  all.mutex.unlock_shared();
  return false;
}

StoppedStreams::~StoppedStreams() {
  if (code_ != kOk) return;
  for (Stream* stream : held_) stream->order.unlock();
  streams().mutex.unlock_shared();
  // Inline, a stream that someone tried to resume in the meantime is ours to resume.
  if (inline_mode() && streams().blocked.load() > 0) resume_blocked();
}

aclError synchronize_context(Context* context, int timeout_ms) {
  std::vector<Stream*> list;
  {
    std::lock_guard<std::mutex> lock(context->mutex);
    list = context->streams;
  }
  aclError first = kOk;
  std::string text;
  for (Stream* stream : list) {
    if (!inline_mode() && stream->pending.load() == 0 && stream->error == kOk) continue;
    const aclError code = synchronize(stream, timeout_ms);
    if (code != kOk && first == kOk) {
      first = code;
      text = last_error_text();
    }
  }
  return first == kOk ? kOk : fail_text(first, text);
}

}  // namespace aloft
