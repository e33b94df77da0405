#include "acl/poison.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "acl/launch.h"

namespace aloft {
namespace {

struct Span {
  uint64_t begin = 0, end = 0;
  bool dense = false;  // every byte belongs to an element
};

Span span_of(const Touch& t) {
  int64_t last = 0, elements = 1;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.sizes[d] <= 0) return {};
    last += (t.sizes[d] - 1) * t.strides[d];
    elements *= t.strides[d] ? t.sizes[d] : 1;
  }
  Span s;
  s.begin = reinterpret_cast<uint64_t>(t.data);
  s.end = s.begin + static_cast<uint64_t>(last + 1) * t.item;
  s.dense = elements == last + 1;
  return s;
}

constexpr int kPattern = 0xff;

void fill(const Touch& t, char* at, int dim) {
  if (dim == t.ndim) {
    std::memset(at, kPattern, t.item);
    return;
  }
  if (dim == t.ndim - 1 && t.strides[dim] == 1) {
    std::memset(at, kPattern, t.item * static_cast<size_t>(t.sizes[dim]));
    return;
  }
  const int64_t count = t.strides[dim] ? t.sizes[dim] : 1;
  for (int64_t i = 0; i < count; ++i) fill(t, at + i * t.strides[dim] * static_cast<int64_t>(t.item), dim + 1);
}

}  // namespace

void Ranges::add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ends_.end() && it->first <= end) {
    begin = std::min(begin, it->first), end = std::max(end, it->second);
    it = ends_.erase(it);
  }
  ends_[begin] = end;
}

bool Ranges::overlaps(uint64_t begin, uint64_t end) const {
  const auto it = ends_.lower_bound(end);
  return it != ends_.begin() && std::prev(it)->second > begin;
}

void CapturePoison::note(const Touch* touches, size_t count, bool poison) {
  if (blind_) return;
  Ranges kept;  // by this node
  for (size_t i = 0; i < count; ++i) {
    if (touches[i].use != Use::Keeps) continue;
    const Span s = span_of(touches[i]);
    kept.add(s.begin, s.end);
    std::vector<std::pair<uint64_t, uint64_t>> unmade;
    poisoned_.gaps(s.begin, s.end, [&](uint64_t begin, uint64_t end) { unmade.emplace_back(begin, end); });
    for (const auto& [begin, end] : unmade) inputs_.add(begin, end);
  }
  if (!poison) return;
  for (size_t i = 0; i < count; ++i) {
    const Touch& t = touches[i];
    if (t.use != Use::Writes) continue;
    const Span s = span_of(t);
    if (s.begin == s.end || kept.overlaps(s.begin, s.end) || inputs_.overlaps(s.begin, s.end)) continue;
    // Host memory the host reads whenever it likes: in the values of an earlier replay, say, while this is captured.
    if (aloftDeviceOf(t.data) < 0 || aloftCheckRange(t.data, s.end - s.begin) != 0) continue;
    if (s.dense) {
      std::memset(t.data, kPattern, s.end - s.begin);
      poisoned_.add(s.begin, s.end);
    } else {
      fill(t, static_cast<char*>(t.data), 0);
    }
  }
}

}  // namespace aloft
