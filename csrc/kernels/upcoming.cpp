#include "kernels/upcoming.h"

#include <algorithm>
#include <array>
#include <memory>

namespace aloft::upcoming {

Region region;

namespace {

struct Entry {
  const void *weights = nullptr, *next = nullptr;
  int64_t bytes = 0;  // of next
};
constexpr size_t kEntries = 1024;

size_t place(const void* weights) {
  return static_cast<size_t>((reinterpret_cast<uintptr_t>(weights) >> 9) * 0x9e3779b97f4a7c15u >> 54);
}
static_assert(kEntries == size_t{1} << (64 - 54), "as many as place() tells apart");

}  // namespace

void reading(const void* weights, int64_t bytes) {
  thread_local std::unique_ptr<std::array<Entry, kEntries>> known;
  thread_local const void* last = nullptr;
  if (!known) known = std::make_unique<std::array<Entry, kEntries>>();
  if (last) (*known)[place(last)] = {last, weights, bytes};
  last = weights;
  const Entry& next = (*known)[place(weights)];
  none();
  if (next.weights != weights) return;
  const auto begin = reinterpret_cast<uintptr_t>(next.next);
  region.at.store(begin, std::memory_order_relaxed);
  region.end.store(begin + static_cast<uintptr_t>(std::min(next.bytes, kMost)), std::memory_order_relaxed);
}

}  // namespace aloft::upcoming
