// Weights that will be read next, fetched into the second-level cache by threads that wait for others. Products of few
// rows follow one another alike in every decode step, so what follows a weight is what followed it the last time. A
// wrong guess, or one whose memory is gone, costs some reading: prefetches do not fault.
#pragma once
#include <atomic>
#include <cstdint>

namespace aloft::upcoming {

constexpr int64_t kMost = int64_t{768} << 10;  // of a 2 MiB second level, which streamed weights pass through as well
constexpr int64_t kFewRows = 32;               // products of more are not bound by reading weights

struct alignas(64) Region {
  std::atomic<uintptr_t> at{0}, end{0};
};
extern Region region;

// A product of few rows begins to read these weights.
void reading(const void* weights, int64_t bytes);
// Another product begins: nothing is known to follow.
inline void none() { region.end.store(0, std::memory_order_relaxed); }

// Fetches some lines; false when none are left (or two threads have just published different regions).
inline bool fetch() {
  constexpr uintptr_t kLines = 8, kLine = 64;
  const uintptr_t left =
      region.end.load(std::memory_order_relaxed) - region.at.load(std::memory_order_relaxed);  // wraps behind the end
  if (left == 0 || left > static_cast<uintptr_t>(kMost)) return false;
  const uintptr_t at = region.at.fetch_add(kLines * kLine, std::memory_order_relaxed);
  for (uintptr_t i = 0; i < kLines; ++i) __builtin_prefetch(reinterpret_cast<const void*>(at + i * kLine), 0, 2);
  return true;
}

// Where no product begins for a while (the host prepares the next step), one waiting thread goes on through what
// followed the last time, far beyond what the second level holds: what falls out of it is found in the third.
class Further {
 public:
  bool fetch();  // some lines; false when it is over
 private:
  uintptr_t at_ = 0, end_ = 0;
  const void* weights_ = nullptr;  // that are being fetched
  int64_t left_ = 0;               // bytes
  uint64_t reading_ = 0;           // the product it began after
};

}  // namespace aloft::upcoming
