// Stable least-significant-byte radix sort. Static: see half.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aloft {

// Sorts *items by the kBytes-byte unsigned key(item), ascending and stable; *other has the same size and is
// overwritten. Passes over a byte that all keys share are skipped.
template <int kBytes, class I, class F>
static void radix_sort(std::vector<I>* items, std::vector<I>* other, F&& key) {
  const size_t n = items->size();
  static thread_local std::vector<uint32_t> counts;
  counts.assign(256 * kBytes, 0);
  for (const I& each : *items) {
    auto k = key(each);
    for (int b = 0; b < kBytes; ++b) ++counts[static_cast<size_t>(256 * b) + ((k >> (8 * b)) & 255)];
  }
  for (int b = 0; b < kBytes; ++b) {
    uint32_t* count = &counts[static_cast<size_t>(256 * b)];
    bool same = false;
    uint32_t start = 0;
    for (int v = 0; v < 256; ++v) {
      const uint32_t here = count[v];
      same |= here == n;
      count[v] = start;
      start += here;
    }
    if (same) continue;
    for (const I& each : *items) (*other)[count[(key(each) >> (8 * b)) & 255]++] = each;
    items->swap(*other);
  }
}

}  // namespace aloft
