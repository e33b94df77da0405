// Weights that will be read next, fetched into the second-level cache by threads that wait for others. Products of few
// rows follow one another alike in every decode step, so what follows a weight is what followed it the last time. A
// wrong guess, or one whose memory is gone, costs some reading: prefetches do not fault.
#pragma once
#include <atomic>
#include <cstdint>

namespace aloft::upcoming {

constexpr int64_t kMost = int64_t{768} << 10;  // of a 2 MiB second level, which streamed weights pass through as well
constexpr int64_t kFewRows = 32;               // products of more are not bound by reading weights

// What a product reads. parts: into how many runs of blocks its loop cuts them (Shares), each for a thread; 0: threads
// take them as it comes. halves: 2 where each block is one of the first half and one of the second.
struct Reading {
  const void* weights = nullptr;
  int64_t bytes = 0, block = 0;
  int parts = 0, halves = 1;
};

// A product of few rows begins to read these weights.
void reading(const Reading& now);
// Another product begins: nothing is known to follow.
void none();

// Fetches some lines; false when none are left, or nothing is known.
bool fetch();
// Where the calling thread's part of the next product begins; null: not known.
const void* follows();

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
