#include "acl/accounting.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "acl/memory.h"

namespace aloft {
namespace {

std::atomic<uint64_t> g_used[64];
std::atomic<uint64_t> g_peak[64];

uint64_t host_available() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib << 10;
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
}

}  // namespace

uint64_t capacity(int device) {
  static const uint64_t bytes = [] {
    const Settings& s = settings();
    if (s.hbm_gib > 0) return round_up(static_cast<uint64_t>(s.hbm_gib * 1073741824.0), kPage);
    return std::min(s.profile->hbm_bytes, host_available() / kPage * kPage);
  }();
  return bytes;
}

uint64_t used_by_all(int device) { return g_used[device].load(); }

bool take_capacity(int device, uint64_t bytes) {
  const uint64_t total = capacity(device);
  uint64_t used = g_used[device].load();
  do {
    if (bytes > total || used > total - bytes) return false;
  } while (!g_used[device].compare_exchange_weak(used, used + bytes));
  uint64_t peak = g_peak[device].load();
  while (peak < used + bytes && !g_peak[device].compare_exchange_weak(peak, used + bytes)) {
  }
  return true;
}

void give_capacity(int device, uint64_t bytes) { g_used[device].fetch_sub(bytes); }
uint64_t peak_use(int device) { return g_peak[device].load(); }

}  // namespace aloft
