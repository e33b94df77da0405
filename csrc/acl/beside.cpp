#include "acl/beside.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "acl/relax.h"

namespace aloft {
namespace {

using Clock = std::chrono::steady_clock;

// How long the thread looks for the next graph before it sleeps: between two steps of a batch the host only notes
// the tokens.
constexpr std::chrono::microseconds kSpin{200};

std::atomic<const AloftBesideHooks*> g_hooks{nullptr};
thread_local bool t_wish = false, t_replays = false;
thread_local uint64_t t_number = 0;  // of the graph this thread has launched beside it since it wished to; 0: none

class Replayer {
 public:
  bool take(Stream* stream, Step& step) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ || taken_.load(std::memory_order_acquire)) return false;
    if (!thread_.joinable() && !start()) return false;
    thread_local const struct Leave {
      ~Leave() { the().finish(); }
    } leave;
    (void)leave;
    give_up_.store(false, std::memory_order_relaxed);
    begin_beside(stream);
    step_ = std::move(step);
    stream_ = stream;
    t_number = ++number_;
    device_.store(stream->context->device, std::memory_order_release);
    taken_.store(true, std::memory_order_release);
    if (asleep_) wake_.notify_one();
    return true;
  }

  void give_up(const Stream* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (taken_.load(std::memory_order_acquire) && stream_ == stream) give_up_.store(true, std::memory_order_relaxed);
  }

  void give_up(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (taken_.load(std::memory_order_acquire) && number_ == number) give_up_.store(true, std::memory_order_relaxed);
  }

  bool given_up() const { return give_up_.load(std::memory_order_relaxed); }
  bool free() const { return !taken_.load(std::memory_order_acquire); }
  // Of whose memory the graph is that runs, or is about to; -1: none.
  int device() const { return device_.load(std::memory_order_acquire); }

  static Replayer& the() {
    static Replayer* const replayer = new Replayer;
    return *replayer;
  }

 private:
  bool start() {
    owner_ = getpid();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the program's own threads
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {
      stop_ = true;  // no thread to be had: graphs run as ever
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!stop_) std::atexit([] { the().end(); });
    return !stop_;
  }

  void work() {
    t_replays = true;
    pthread_setname_np(pthread_self(), "aloft-beside");
    g_hooks.load()->beside(1);
    for (;;) {
      if (!look()) return;
      Stream* stream = nullptr;
      Step step;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        stream = stream_;
        step = std::move(step_);
      }
      select_context(stream->context);
      finish_beside(stream, std::move(step), [this] { device_.store(-1, std::memory_order_release); });
      // Not before: while this thread helps blocked streams on, it must not meet one that waits for it.
      taken_.store(false, std::memory_order_release);
    }
  }

  // Until there is a graph; false: the process ends.
  bool look() {
    const auto until = Clock::now() + kSpin;
    for (int turns = 0; !taken_.load(std::memory_order_acquire); ++turns) {
      relax();
      if ((turns & 63) != 63 || Clock::now() < until) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_ = true;
      wake_.wait(lock, [this] { return stop_ || taken_.load(std::memory_order_relaxed); });
      asleep_ = false;
      break;
    }
    return taken_.load(std::memory_order_acquire);
  }

  // A thread that has launched a graph beside it ends after it. At exit that is before static objects go away which the
  // graph uses; atexit() would have to be called after the last of them was made. Helps no more: the thread's own
  // objects that kernels use may be gone.
  void finish() const {
    if (g_forked) return;
    for (uint64_t seen = progress(); device() >= 0 && !t_replays; seen = progress()) wait_progress(seen, 20);
  }

  // At exit what other threads have launched is finished too, then the thread ends.
  void end() {
    if (g_forked || getpid() != owner_ || t_replays) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool asleep_ = false, stop_ = false;
  std::atomic<bool> taken_{false}, give_up_{false};
  std::atomic<int> device_{-1};
  Stream* stream_ = nullptr;
  Step step_;
  uint64_t number_ = 0;  // graphs taken so far
  std::thread thread_;
  pid_t owner_ = 0;
};

}  // namespace

bool take_wish_beside() { return std::exchange(t_wish, false); }

bool given_up_beside() { return Replayer::the().given_up(); }

bool run_beside(Stream* stream, Step& step) {
  Graph* graph = step.graph.get();
  if (!graph->plain || !aloftRunsBeside()) return false;
  Stream* none = nullptr;
  if (!graph->runner.compare_exchange_strong(none, stream)) return false;
  if (Replayer::the().take(stream, step)) return true;
  graph->runner.store(nullptr);
  signal_progress();  // another stream may have found it taken
  return false;
}

namespace {

// Takes part in computing until over(context).
void help_until(bool (*over)(void*), void* context) {
  const AloftBesideHooks* hooks = g_hooks.load(std::memory_order_acquire);
  while (!over(context)) {
    const uint64_t seen = progress();
    if (!hooks->help(over, context) && !over(context)) wait_progress(seen, 1);
  }
}

}  // namespace

bool join_beside(Stream* stream, int timeout_ms) {
  if (t_replays) return true;
  if (timeout_ms < 0) {
    help_until([](void* of) { return !static_cast<Stream*>(of)->beside.load(std::memory_order_acquire); }, stream);
    return true;
  }
  struct Wait {
    Stream* stream;
    Clock::time_point until;
  } wait{stream, Clock::now() + std::chrono::milliseconds(timeout_ms)};
  help_until(
      [](void* of) {
        const auto* wait = static_cast<Wait*>(of);
        return !wait->stream->beside.load(std::memory_order_acquire) || Clock::now() >= wait->until;
      },
      &wait);
  return !stream->beside.load(std::memory_order_acquire);
}

bool any_beside() { return Replayer::the().device() >= 0; }

void join_beside(int device) {
  if (device < 0 || t_replays || Replayer::the().device() != device) return;
  help_until([](void* of) { return Replayer::the().device() != *static_cast<int*>(of); }, &device);
}

void join_all_beside() {
  if (any_beside() && !t_replays && !g_forked) help_until([](void*) { return !any_beside(); }, nullptr);
}

void give_up_beside(const Stream* stream) { Replayer::the().give_up(stream); }

}  // namespace aloft

using namespace aloft;

void aloftSetBesideHooks(const AloftBesideHooks* hooks) { g_hooks.store(hooks, std::memory_order_release); }

int aloftRunsBeside(void) {
  const AloftBesideHooks* hooks = g_hooks.load(std::memory_order_acquire);
  return inline_mode() && hooks && hooks->threads() > 1;
}

void aloftRunNextBeside(void) {
  t_wish = true;
  t_number = 0;
}

uint64_t aloftBesideNumber(void) { return t_number; }

int aloftBesideIsFree(void) { return aloftRunsBeside() && Replayer::the().free(); }

void aloftGiveUpBeside(uint64_t number) {
  if (!g_forked) Replayer::the().give_up(number);
}
