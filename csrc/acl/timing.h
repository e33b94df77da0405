// Time of the units of work that go through launch(), by name: what `aloft profile` shows. Off it costs one relaxed
// load and a branch that is never taken; on, two reads of the clock and a look-up. Eager work and replayed graphs
// alike.
#pragma once
#include <atomic>

namespace aloft {

extern std::atomic<bool> g_timing;

void timing_enter(const char* name);
void timing_leave();

// Times a node from here to the end of the scope.
class Timed {
 public:
  explicit Timed(const char* name) : on_(g_timing.load(std::memory_order_relaxed)) {
    if (__builtin_expect(on_, 0)) timing_enter(name);
  }
  ~Timed() {
    if (__builtin_expect(on_, 0)) timing_leave();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  const bool on_;
};

}  // namespace aloft
