#include "acl/timing.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "acl/abi.h"
#include "acl/launch.h"

namespace aloft {

std::atomic<bool> g_timing{false};

namespace {

using Clock = std::chrono::steady_clock;

struct Entry {
  uint64_t calls = 0;
  int64_t nanoseconds = 0;
  double bytes = 0;
  double operations = 0;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<const char*, Entry> entries;  // by literal; equal texts are added up in the report
};

Table& table() {
  static Table* const t = new Table;
  return *t;
}

// Grows whenever timing starts: frames left over from an earlier time are then forgotten.
std::atomic<uint64_t> g_generation{0};

struct Frame {
  const char* name;
  Clock::time_point start;
  int64_t inner = 0;  // nanoseconds of what was launched from within; each counts for itself
  double bytes = 0;
  double operations = 0;
};

struct Frames {
  uint64_t generation = 0;
  std::vector<Frame> stack;
};

thread_local Frames t_frames;

}  // namespace

void timing_enter(const char* name) {
  Frames& frames = t_frames;
  const uint64_t generation = g_generation.load(std::memory_order_relaxed);
  if (frames.generation != generation) {
    frames.stack.clear();
    frames.generation = generation;
  }
  frames.stack.push_back(Frame{name, Clock::now()});
}

void timing_leave() {
  Frames& frames = t_frames;
  if (frames.stack.empty() || frames.generation != g_generation.load(std::memory_order_relaxed)) return;
  const Frame frame = frames.stack.back();
  frames.stack.pop_back();
  const int64_t spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - frame.start).count();
  if (!frames.stack.empty()) frames.stack.back().inner += spent;
  Table& all = table();
  std::lock_guard<std::mutex> lock(all.mutex);
  Entry& entry = all.entries[frame.name];
  ++entry.calls;
  entry.nanoseconds += spent - frame.inner;
  entry.bytes += frame.bytes;
  entry.operations += frame.operations;
}

}  // namespace aloft

using namespace aloft;

ALOFT_API std::atomic<bool>& aloftTimingSwitch() { return g_timing; }

ALOFT_API void aloftTimingAddWork(double bytes, double operations) {
  Frames& frames = t_frames;
  if (frames.stack.empty()) return;
  frames.stack.back().bytes += bytes;
  frames.stack.back().operations += operations;
}

ALOFT_API void aloftTimingStart() {
  Table& all = table();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.entries.clear();
  g_generation.fetch_add(1);
  g_timing = true;
}

ALOFT_API void aloftTimingStop() { g_timing = false; }

// Lines "name <tab> calls <tab> nanoseconds <tab> bytes <tab> operations", what took longest first not promised.
// Returns the size of the whole text without its final zero; what does not fit into `capacity` is left out.
ALOFT_API size_t aloftTimingReport(char* text, size_t capacity) {
  std::map<std::string, Entry> sums;
  {
    Table& all = table();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [name, entry] : all.entries) {
      Entry& sum = sums[name];
      sum.calls += entry.calls;
      sum.nanoseconds += entry.nanoseconds;
      sum.bytes += entry.bytes;
      sum.operations += entry.operations;
    }
  }
  std::string all;
  for (const auto& [name, entry] : sums) {
    char line[128];
    std::snprintf(line, sizeof line, "\t%llu\t%lld\t%.0f\t%.0f\n", static_cast<unsigned long long>(entry.calls),
                  static_cast<long long>(entry.nanoseconds), entry.bytes, entry.operations);
    all += name + line;
  }
  if (capacity > 0) {
    const size_t count = all.copy(text, capacity - 1);
    text[count] = 0;
  }
  return all.size();
}
