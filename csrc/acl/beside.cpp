#include "acl/beside.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace aloft {
namespace {

using Clock = std::chrono::steady_clock;

// How long the thread looks for the next graph before it sleeps: between two steps of a batch the host only notes
// the tokens.
constexpr std::chrono::microseconds kSpin{200};

std::atomic<const AloftBesideHooks*> g_hooks{nullptr};
thread_local bool t_wish = false, t_replays = false;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Replayer {
 public:
  bool take(Stream* stream, Step& step) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ || taken_.load(std::memory_order_relaxed)) return false;
    if (!thread_.joinable()) {
      owner_ = getpid();
      std::atexit([] { the().end(); });
      try {
        thread_ = std::thread([this] { work(); });
      } catch (const std::system_error&) {
        stop_ = true;  // no thread to be had: graphs run as ever
        return false;
      }
    }
    give_up_.store(false, std::memory_order_relaxed);
    begin_beside(stream);
    step_ = std::move(step);
    stream_ = stream;
    taken_.store(true, std::memory_order_release);
    if (asleep_) wake_.notify_one();
    return true;
  }

  void give_up(const void* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (taken_.load(std::memory_order_acquire) && stream_ == stream) give_up_.store(true, std::memory_order_relaxed);
  }

  bool given_up() const { return give_up_.load(std::memory_order_relaxed); }
  bool at_work() const { return taken_.load(std::memory_order_acquire) && !t_replays; }  // for others

  static Replayer& the() {
    static Replayer* const replayer = new Replayer;
    return *replayer;
  }

 private:
  void work() {
    t_replays = true;
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
      finish_beside(stream, std::move(step), [this] { taken_.store(false, std::memory_order_release); });
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

  // At exit the thread ends before static objects of other libraries go away.
  void end() {
    if (g_forked || getpid() != owner_) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      wake_.notify_one();
      give_up_.store(true, std::memory_order_relaxed);
    }
    thread_.join();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool asleep_ = false, stop_ = false;
  std::atomic<bool> taken_{false}, give_up_{false};
  Stream* stream_ = nullptr;
  Step step_;
  std::thread thread_;
  pid_t owner_ = 0;
};

}  // namespace

bool take_wish_beside() {
  const bool wish = t_wish;
  t_wish = false;
  return wish;
}

bool given_up_beside() { return Replayer::the().given_up(); }

bool run_beside(Stream* stream, Step& step) {
  if (!aloftRunsBeside() || !step.graph->random.empty()) return false;
  for (const auto& node : step.graph->nodes) {
    if (dynamic_cast<SyncNode*>(node.get())) return false;
  }
  return Replayer::the().take(stream, step);
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

void join_beside(Stream* stream) {
  help_until([](void* of) { return !static_cast<Stream*>(of)->beside.load(std::memory_order_acquire); }, stream);
}

void join_beside() {
  Replayer& replayer = Replayer::the();
  if (replayer.at_work()) help_until([](void* of) { return !static_cast<Replayer*>(of)->at_work(); }, &replayer);
}

}  // namespace aloft

using namespace aloft;

void aloftSetBesideHooks(const AloftBesideHooks* hooks) { g_hooks.store(hooks, std::memory_order_release); }

int aloftRunsBeside(void) {
  const AloftBesideHooks* hooks = g_hooks.load(std::memory_order_acquire);
  return inline_mode() && hooks && hooks->threads() > 1;
}

void aloftRunNextBeside(void) { t_wish = true; }

int aloftBesideIsFree(void) { return aloftRunsBeside() && !Replayer::the().at_work(); }

void aloftGiveUpBeside(aclrtStream handle) { Replayer::the().give_up(handle); }
