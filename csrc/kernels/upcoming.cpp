#include "kernels/upcoming.h"

#include <algorithm>
#include <array>

#include "kernels/parallel.h"

namespace aloft::upcoming {
namespace {

constexpr uintptr_t kLine = 64;
constexpr int64_t kPiece = 8 * kLine;            // fetched at a time
constexpr int64_t kFurther = int64_t{20} << 20;  // what is read while the host works, about

void fetch_piece(uintptr_t at) {
  for (uintptr_t i = 0; i < kPiece; i += kLine) __builtin_prefetch(reinterpret_cast<const void*>(at + i), 0, 2);
}

struct Entry {
  std::atomic<const void*> weights{nullptr};
  struct {
    std::atomic<const void*> weights{nullptr};
    std::atomic<int64_t> bytes{0}, block{0};
    std::atomic<int> parts{0}, halves{1};
  } next;
};
constexpr size_t kEntries = 1024;
struct Table : std::array<Entry, kEntries> {
  Table* before = nullptr;  // of another thread; none is ever freed, since threads look into each other's
};

std::atomic<Table*> tables{nullptr};

std::atomic<const Table*> latest{nullptr};  // of the thread that read weights last
std::atomic<const void*> latest_weights{nullptr};
std::atomic<uint64_t> readings{0};
std::atomic<bool> known{false};  // whether something follows

// Weights without parts that are read next: the threads take what is left of it from each other.
struct alignas(64) Region {
  std::atomic<uintptr_t> at{0}, end{0};

  bool fetch() {
    const uintptr_t left = end.load(std::memory_order_relaxed) - at.load(std::memory_order_relaxed);  // or wraps
    if (left == 0 || left > static_cast<uintptr_t>(kMost)) return false;  // also where two have just been published
    fetch_piece(at.fetch_add(kPiece, std::memory_order_relaxed));
    return true;
  }
} region;

size_t place(const void* weights) {
  return static_cast<size_t>((reinterpret_cast<uintptr_t>(weights) >> 9) * 0x9e3779b97f4a7c15u >> 54);
}
static_assert(kEntries == size_t{1} << (64 - 54), "as many as place() tells apart");

// What followed `weights` the last time; none: {}.
Reading after(const Table& table, const void* weights) {
  const Entry& e = table[place(weights)];
  Reading r;
  if (!weights || e.weights.load(std::memory_order_relaxed) != weights) return r;
  r.weights = e.next.weights.load(std::memory_order_relaxed);
  r.bytes = e.next.bytes.load(std::memory_order_relaxed), r.block = e.next.block.load(std::memory_order_relaxed);
  r.parts = e.next.parts.load(std::memory_order_relaxed), r.halves = e.next.halves.load(std::memory_order_relaxed);
  return r;
}

// The calling thread's part of some weights, block by block.
struct Part {
  Reading of;
  int64_t first = 0, blocks = 0;        // of each half
  int64_t block = 0, half = 0, at = 0;  // what is fetched next

  Part() = default;
  explicit Part(const Reading& r) : of(r) {
    if (!r.weights || r.parts < 1 || r.block < 1 || r.halves < 1) return;
    const int64_t all = r.bytes / r.halves / r.block, share = loop_place() % r.parts;
    first = all * share / r.parts;
    blocks = all * (share + 1) / r.parts - first;
  }
  int64_t bytes() const { return blocks * of.halves * of.block; }
  bool done() const { return block >= blocks; }
  uintptr_t here() const {
    return reinterpret_cast<uintptr_t>(of.weights) +
           static_cast<uintptr_t>(half * (of.bytes / of.halves) + (first + block) * of.block + at);
  }
  void fetch() {
    fetch_piece(here());
    if ((at += kPiece) < of.block) return;
    at = 0;
    if (++half < of.halves) return;
    half = 0, ++block;
  }
};

// A thread that waits: parts of the products that follow, one after the other, as long as they fit into its cache.
class Ahead {
 public:
  bool fetch() {
    const Table* table = latest.load(std::memory_order_acquire);
    if (!table || !known.load(std::memory_order_relaxed)) return false;
    const uint64_t now = readings.load(std::memory_order_relaxed);
    if (now != seen_) catch_up(*table, now);
    while (part_.done()) {
      if (!part_.of.weights || ahead_ + part_.bytes() >= kMost || number_ - now > kProducts) return false;
      const Reading next = after(*table, part_.of.weights);
      if (!next.weights || !next.parts) return false;
      ahead_ += part_.bytes();
      part_ = Part(next), ++number_;
    }
    if (ahead_ + part_.block * part_.of.halves * part_.of.block >= kMost) return false;
    part_.fetch();
    return true;
  }

 private:
  static constexpr uint64_t kProducts = 4;

  // A product has begun: what was fetched for it is no longer ahead.
  void catch_up(const Table& table, uint64_t now) {
    Reading r = after(table, latest_weights.load(std::memory_order_relaxed));
    const Reading first = r;
    seen_ = now, ahead_ = 0;
    uint64_t number = now + 1;
    for (; number < number_ && r.weights; ++number) {
      ahead_ += Part(r).bytes();
      r = after(table, r.weights);
    }
    if (number == number_ && r.weights == part_.of.weights) return;
    number_ = now + 1, ahead_ = 0, part_ = Part(first);
  }

  Part part_;
  uint64_t seen_ = 0, number_ = 0;  // products: begun when this was looked at last; whose part this is
  int64_t ahead_ = 0;               // bytes of the parts before
};

}  // namespace

void none() {
  known.store(false, std::memory_order_relaxed);
  region.end.store(0, std::memory_order_relaxed);
}

void reading(const Reading& now) {
  thread_local Table* const own = [] {
    auto* made = new Table;
    made->before = tables.load();
    while (!tables.compare_exchange_weak(made->before, made)) {
    }
    return made;
  }();
  thread_local const void* last = nullptr;
  if (last) {
    Entry& entry = (*own)[place(last)];
    entry.weights.store(last, std::memory_order_relaxed);
    entry.next.weights.store(now.weights, std::memory_order_relaxed);
    entry.next.bytes.store(now.bytes, std::memory_order_relaxed);
    entry.next.block.store(now.block, std::memory_order_relaxed);
    entry.next.parts.store(now.parts, std::memory_order_relaxed);
    entry.next.halves.store(now.halves, std::memory_order_relaxed);
  }
  last = now.weights;
  none();
  latest_weights.store(now.weights, std::memory_order_relaxed);
  latest.store(own, std::memory_order_release);
  readings.fetch_add(1, std::memory_order_relaxed);
  const Reading next = after(*own, now.weights);
  if (!next.weights) return;
  if (!next.parts) {
    const auto begin = reinterpret_cast<uintptr_t>(next.weights);
    region.at.store(begin, std::memory_order_relaxed);
    region.end.store(begin + static_cast<uintptr_t>(std::min(next.bytes, kMost)), std::memory_order_relaxed);
  }
  known.store(true, std::memory_order_relaxed);
}

bool fetch() {
  thread_local Ahead ahead;
  return region.fetch() || ahead.fetch();
}

const void* follows() {
  const Table* table = latest.load(std::memory_order_acquire);
  if (!table || !known.load(std::memory_order_relaxed)) return nullptr;
  const Reading next = after(*table, latest_weights.load(std::memory_order_relaxed));
  return next.parts ? reinterpret_cast<const void*>(Part(next).here()) : next.weights;
}

bool Further::fetch() {
  const Table* table = latest.load(std::memory_order_acquire);
  if (!table) return false;
  const uint64_t now = readings.load(std::memory_order_relaxed);
  if (now != reading_) {
    reading_ = now, left_ = kFurther, at_ = end_ = 0;
    weights_ = latest_weights.load(std::memory_order_relaxed);
  }
  if (left_ <= 0) return false;
  if (at_ >= end_) {
    const Reading next = after(*table, weights_);
    weights_ = next.weights;
    at_ = reinterpret_cast<uintptr_t>(weights_);
    end_ = at_ + static_cast<uintptr_t>(weights_ ? std::min(next.bytes, left_) : 0);
    left_ -= static_cast<int64_t>(end_ - at_);
    if (at_ >= end_) return left_ = 0, false;
  }
  fetch_piece(at_);
  at_ += kPiece;
  return true;
}

}  // namespace aloft::upcoming
