// Strict mode: what a capture records is poisoned where it will be written.
//
// A capture computes nothing, so results hold nothing before the first replay. Memory that was in use before (an
// earlier graph of the same pool, a tensor given as out=) would still show plausible values; filled with NaN (-1 as an
// integer) it shows that nobody computed it. Only memory whose old contents no node of the graph asks for is touched:
// a replay finds its inputs as the host left them.
#pragma once
#include <map>

#include "acl/touch.h"

namespace aloft {

// Disjoint ranges of addresses.
class Ranges {
 public:
  void add(uint64_t begin, uint64_t end);
  bool overlaps(uint64_t begin, uint64_t end) const;
  // f(begin, end) for each part of the range that is not covered.
  template <class F>
  void gaps(uint64_t begin, uint64_t end, F&& f) const {
    auto it = ends_.upper_bound(begin);
    if (it != ends_.begin() && std::prev(it)->second > begin) --it;
    for (; begin < end && it != ends_.end() && it->first < end; ++it) {
      if (it->first > begin) f(begin, it->first);
      begin = it->second;
    }
    if (begin < end) f(begin, end);
  }

 private:
  std::map<uint64_t, uint64_t> ends_;  // by begin
};

// What the nodes of one capture do to memory, in their order.
class CapturePoison {
 public:
  // A node has been recorded. poison: its results may be overwritten now.
  void note(const Touch* touches, size_t count, bool poison);
  // A node of which nothing is known: it may read anything, so nothing that follows is poisoned.
  void note_unknown() { blind_ = true; }

 private:
  bool blind_ = false;
  Ranges inputs_;    // what nodes ask for and no node has made: the host's
  Ranges poisoned_;  // what nodes make
};

}  // namespace aloft
