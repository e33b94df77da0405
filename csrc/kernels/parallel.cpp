// The pool. A loop is published by opening a gate (one 64-bit word: number of the loop, an open
// bit, a waiting bit, threads inside); workers enter through the gate while it is open and take
// ranges from a shared counter, the caller does the same, closes the gate and waits for those
// inside. A worker that is asleep or not scheduled is therefore never waited for. Between loops a
// worker spins for as long as the gap between two eager operators, then sleeps on a futex: waking it costs its caller
// 15 microseconds on a virtual machine, and it arrives 30 later.
#include "kernels/parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "acl/relax.h"
#include "kernels/cpu.h"
#include "kernels/upcoming.h"

namespace aloft {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kRangesPerThread = 4;  // so that a thread that loses its processor does not hold up the rest
constexpr uint64_t kOpen = 1u << 31, kWaiting = 1u << 30, kInside = kWaiting - 1, kLoop = uint64_t{1} << 32;

int64_t environment_number(const char* name, int64_t low, int64_t high, int64_t otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text, &end, 10);
  if (errno || *end || value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must be a whole number from " + std::to_string(low) + " to " +
                                std::to_string(high) + ", got '" + text + "'");
  }
  return value;
}

struct Settings {
  int threads = static_cast<int>(environment_number("ALOFT_THREADS", 1, kMaxThreads, available_processors()));
  int64_t spin_ns = 1000 * environment_number("ALOFT_SPIN_US", 0, 1000000, 150);
};

const Settings& settings() {
  static const Settings chosen;
  return chosen;
}

std::atomic<int> threads_asked{0};  // 0: as the settings say

// What a thread does that has to look again.
inline void wait_a_little() {
  if (!upcoming::fetch()) relax();
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

thread_local bool inside_loop = false;
thread_local bool place_left = false;
thread_local int place = 0;
constexpr int kGuest = -1;                   // in the place of a worker's index
constexpr int64_t kGuestPatience = 2000000;  // ns without a loop, after which a guest sleeps
constexpr int kTurnsToGap = 400;  // some 20 microseconds: the loop that is waited for does not follow at once

struct Worker {
  alignas(64) std::atomic<uint32_t> asleep{0};
};

class Pool {
 public:
  std::mutex busy;  // held by the thread whose loop has the pool

  void run(int threads, int64_t ranges, int64_t range, int64_t count, void (*body)(void*, int64_t, int64_t),
           void* context) {
    int helpers = static_cast<int>(ranges < threads ? ranges : threads) - 1;
    if (place_left && helpers > threads - 2) helpers = threads - 2;
    helpers = grow(helpers);
    body_ = body;
    context_ = context;
    range_ = range;
    count_ = count;
    helpers_ = helpers;
    next_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (gate_.load(std::memory_order_relaxed) / kLoop + 1) * kLoop;
    place = 0;
    gate_.store(loop | kOpen, std::memory_order_seq_cst);
    for (int i = 0; i < helpers; ++i) {
      if (workers_[i].asleep.load(std::memory_order_seq_cst) && workers_[i].asleep.exchange(0)) {
        futex_wake(&workers_[i].asleep);
      }
    }
    take_ranges();
    close();
  }

  bool help(bool (*done)(void*), void* context) {
    uint64_t last = 0;
    int64_t until = now_ns() + kGuestPatience;
    for (int turns = 0; !done(context); ++turns) {
      if (take_part(kGuest, &last)) {
        turns = 0;
        until = 0;
        continue;
      }
      wait_a_little();
      if ((turns & 63) != 63) continue;
      if (until == 0) until = now_ns() + kGuestPatience;
      if (now_ns() > until) return false;
    }
    return true;
  }

 private:
  void take_ranges() {
    inside_loop = true;
    for (;;) {
      const int64_t begin = next_.fetch_add(range_, std::memory_order_relaxed);
      if (begin >= count_) break;
      body_(context_, begin, begin + range_ < count_ ? begin + range_ : count_);
    }
    inside_loop = false;
  }

  void close() {
    uint64_t state = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    const int64_t patience = now_ns() + 50000;
    for (int turns = 0; state & kInside; ++turns) {
      wait_a_little();
      state = gate_.load(std::memory_order_acquire);
      if ((turns & 31) == 31 && (state & kInside) && now_ns() > patience) {
        const uint32_t seen = woken_.load(std::memory_order_acquire);
        state = gate_.fetch_or(kWaiting, std::memory_order_acq_rel);
        if (state & kInside) futex_wait(&woken_, seen);
        state = gate_.load(std::memory_order_acquire);
      }
    }
    gate_.fetch_and(~kWaiting, std::memory_order_relaxed);
  }

  // Runs in a worker: takes part in the open loop, if it is open and meant for this worker.
  bool take_part(int index, uint64_t* last) {
    uint64_t state = gate_.load(std::memory_order_seq_cst);
    while ((state & kOpen) && state / kLoop != *last) {
      if (!gate_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      *last = state / kLoop;
      place = index == kGuest ? helpers_ + 1 : index + 1;
      if (index < helpers_) take_ranges();
      state = gate_.fetch_sub(1, std::memory_order_acq_rel);
      if ((state & kInside) == 1 && (state & kWaiting)) {
        woken_.fetch_add(1, std::memory_order_release);
        futex_wake(&woken_);
      }
      return true;
    }
    return false;
  }

  void work(int index) {
    const int64_t spin = settings().spin_ns;
    uint64_t last = 0;
    upcoming::Further further;
    std::atomic<uint32_t>& asleep = workers_[index].asleep;
    for (;;) {
      bool found = false;
      const int64_t until = spin > 0 ? now_ns() + spin : 0;
      for (int turns = 0; spin > 0; ++turns) {
        if ((found = take_part(index, &last))) break;
        if (upcoming::fetch()) continue;
        if (index == 0 && turns > kTurnsToGap && further.fetch()) continue;
        relax();
        if ((turns & 15) == 15 && now_ns() > until) break;
      }
      if (found) continue;
      asleep.store(1, std::memory_order_seq_cst);
      // A loop opened between this store and the wait finds the flag set and clears it: the wait returns. Whoever is
      // woken spins again, even if it came too late: where there was one loop there are more.
      if (!take_part(index, &last) && !gate_changed(last)) futex_wait(&asleep, 1);
      asleep.store(0, std::memory_order_relaxed);
    }
  }

  bool gate_changed(uint64_t last) const {
    const uint64_t state = gate_.load(std::memory_order_seq_cst);
    return (state & kOpen) && state / kLoop != last;
  }

  // Makes sure of `wanted` workers; returns how many there are to use. Called with the pool held.
  int grow(int wanted) {
    while (started_ < wanted) {
      struct Start {
        Pool* pool;
        int index;
      };
      auto* start = new Start{this, started_};
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the program's own threads
      pthread_t thread;
      const int error = pthread_create(
          &thread, nullptr,
          [](void* argument) -> void* {
            const Start start = *static_cast<Start*>(argument);
            delete static_cast<Start*>(argument);
            start.pool->work(start.index);
            return nullptr;
          },
          start);
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      if (error) {
        delete start;
        if (!refused_) std::fprintf(stderr, "aloft: cannot start kernel thread %d (error %d)\n", started_ + 2, error);
        refused_ = true;
        return started_;
      }
      pthread_setname_np(thread, "aloft-kernel");
      pthread_detach(thread);  // never joined: an idle worker sleeps in the kernel until the process ends
      ++started_;
    }
    return wanted;
  }

  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> woken_{0};
  void (*body_)(void*, int64_t, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t range_ = 0, count_ = 0;
  int helpers_ = 0;
  int started_ = 0;
  bool refused_ = false;
  Worker workers_[kMaxThreads];
};

// Never destroyed (workers outlive static destructors). A forked child has none of the threads and
// makes its own pool.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  Pool* p = the_pool.load(std::memory_order_acquire);
  if (p) return *p;
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr, std::memory_order_release); });
    return true;
  }();
  (void)registered;
  auto fresh = std::make_unique<Pool>();
  if (the_pool.compare_exchange_strong(p, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *p;
}

}  // namespace

int num_threads() {
  const int asked = threads_asked.load(std::memory_order_relaxed);
  return asked > 0 ? asked : settings().threads;
}

void set_num_threads(int n) {
  if (n < 1 || n > kMaxThreads) {
    throw std::invalid_argument("the number of threads must be from 1 to " + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(n));
  }
  settings();  // a wrong environment is not hidden by the call
  threads_asked.store(n, std::memory_order_relaxed);
}

bool help_loops(bool (*done)(void*), void* context) { return inside_loop ? done(context) : pool().help(done, context); }

int loop_place() { return place; }

void leave_place(bool on) { place_left = on; }

void detail::run_parallel(int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  const int threads = num_threads();
  if (inside_loop || threads == 1 || count <= grain) return body(context, 0, count);
  // Of 4, 3, 2 or 1 ranges for each thread, the finest cut that gives the busiest thread least to do.
  const int64_t grains = (count + grain - 1) / grain;
  int64_t range = grains, ranges = 1, least = INT64_MAX;
  for (int each = kRangesPerThread; each >= 1; --each) {
    const int64_t size = (grains + each * threads - 1) / (each * threads), pieces = (grains + size - 1) / size;
    const int64_t busiest = (pieces + threads - 1) / threads * size;
    if (busiest < least) {
      least = busiest;
      range = size;
      ranges = pieces;
    }
  }
  range *= grain;
  Pool& p = pool();
  std::unique_lock<std::mutex> hold(p.busy, std::try_to_lock);
  if (!hold.owns_lock()) return body(context, 0, count);
  p.run(threads, ranges, range, count, body, context);
}

}  // namespace aloft

namespace {
thread_local std::string environment_error;

template <class F>
auto guarded(F&& f, decltype(f()) otherwise) {
  try {
    return f();
  } catch (const std::exception& e) {
    environment_error = e.what();
    return otherwise;
  }
}
}  // namespace

extern "C" {

int aloftSetNumThreads(int n) {
  return guarded([n] { return aloft::set_num_threads(n), 0; }, -1);
}

int aloftNumThreads(void) {
  return guarded([] { return aloft::num_threads(); }, -1);
}

const char* aloftKernelsIsa(void) {
  return guarded([] { return aloft::isa_name(aloft::isa()); }, static_cast<const char*>(nullptr));
}

const char* aloftKernelsError(void) {
  const bool fine = guarded([] { return aloft::isa(), aloft::num_threads(), true; }, false);
  return fine ? nullptr : environment_error.c_str();
}
}
