// Loops over blocks that lie one behind the other in memory: each thread has a run of its own, so that what it reads
// next is known, and takes blocks from the end of another's when its own are done.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/parallel.h"

namespace aloft {

class Shares {
 public:
  static constexpr int kMost = 32;

  // count < 2^31 blocks in 1 <= shares <= kMost runs.
  Shares(int64_t count, int shares) : shares_(shares) {
    for (int s = 0; s < shares_; ++s) {
      const auto first = static_cast<uint64_t>(count * s / shares_);
      left_[s].blocks.store(first | static_cast<uint64_t>(count * (s + 1) / shares_) << 32, std::memory_order_relaxed);
    }
  }

  // Calls body(block, next) for every block that no other thread takes; next: what this thread probably takes then, -1
  // where that is not known.
  template <class F>
  void take(F&& body) {
    const int own = loop_place() % shares_;
    for (int64_t next, i; (i = first(own, &next)) >= 0;) body(i, next);
    for (int s = 1; s < shares_; ++s) {
      const int other = (own + s) % shares_;
      for (int64_t next, i; (i = last(other, &next)) >= 0;) body(i, next);
    }
  }

 private:
  struct alignas(64) Run {
    std::atomic<uint64_t> blocks;  // the first that is left, and where they end
  };

  int64_t first(int share, int64_t* next) {
    uint64_t now = left_[share].blocks.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = now & 0xffffffff, end = now >> 32;
      if (begin >= end) return -1;
      if (!left_[share].blocks.compare_exchange_weak(now, now + 1, std::memory_order_relaxed)) continue;
      *next = begin + 1 < end ? static_cast<int64_t>(begin) + 1 : -1;
      return static_cast<int64_t>(begin);
    }
  }
  int64_t last(int share, int64_t* next) {
    uint64_t now = left_[share].blocks.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = now & 0xffffffff, end = now >> 32;
      if (begin >= end) return -1;
      if (!left_[share].blocks.compare_exchange_weak(now, now - (uint64_t{1} << 32), std::memory_order_relaxed))
        continue;
      *next = begin + 1 < end ? static_cast<int64_t>(end) - 2 : -1;
      return static_cast<int64_t>(end) - 1;
    }
  }

  int shares_;
  Run left_[kMost];
};

// Into how many runs `count` blocks are cut, of `grain` blocks at least.
inline int shares_of(int64_t count, int64_t grain) {
  const int64_t most = std::min<int64_t>(num_threads(), Shares::kMost);
  return static_cast<int>(std::clamp<int64_t>(count / std::max<int64_t>(1, grain), 1, most));
}

// body(block, next) for all blocks, as Shares::take calls it.
template <class F>
void parallel_shares(int64_t count, int shares, F&& body) {
  Shares blocks(count, shares);
  parallel_for(shares, 1, [&](int64_t, int64_t) { blocks.take(body); });
}

}  // namespace aloft
