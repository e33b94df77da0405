#include "kernels/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace aloft {
namespace {

#if defined(__x86_64__) && defined(ALOFT_WITH_AMX)
// The tile registers are 8 KiB of state that Linux saves only for processes that asked. The permission is the
// process's: threads that run already have it too, forked children inherit it. Refused (an old kernel, an alternate
// signal stack too small for the state): AVX-512 it is.
bool tiles_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx() {
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512bf16")) {
    return false;
  }
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  return (d & kAll) == kAll && tiles_permitted();
}
#else
bool has_amx() { return false; }
#endif

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return Isa::Portable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return Isa::Avx2;
  return has_amx() ? Isa::Amx : Isa::Avx512;
#else
  return Isa::Portable;
#endif
}

Isa choose_isa() {
  const Isa best = best_isa();
  const char* wanted = std::getenv("ALOFT_ISA");
  if (!wanted || !*wanted) return best;
  for (Isa candidate : {Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    if (std::strcmp(wanted, isa_name(candidate)) != 0) continue;
    if (candidate > best) {
      throw std::invalid_argument(std::string("ALOFT_ISA=") + wanted +
                                  " is not available on this processor; the best is " + isa_name(best));
    }
    return candidate;
  }
  throw std::invalid_argument(std::string("ALOFT_ISA must be portable, avx2, avx512 or amx, got '") + wanted + "'");
}

int affinity_processors() {
  for (int limit = 1024; limit <= (1 << 20); limit *= 4) {
    cpu_set_t* set = CPU_ALLOC(limit);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(limit);
    const bool known = sched_getaffinity(getpid(), bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(count, 1);
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// Processors a quota of `quota` microseconds every `period` amounts to, rounded up; 0 without a limit.
int quota_processors(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return 0;
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

void take_lower(int* limit, int found) {
  if (found > 0 && (*limit == 0 || found < *limit)) *limit = found;
}

// The tightest CPU quota on the way from this process's control group to the root; 0 without one.
int cgroup_processors() {
  int limit = 0;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = line.compare(0, first, "0") == 0 && controllers == ",,";
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    for (std::string path = line.substr(second + 1);;) {
      if (v2) {
        std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
        std::string quota;
        double period = 0;
        if (file >> quota >> period && quota != "max") {
          take_lower(&limit, quota_processors(std::atof(quota.c_str()), period));
        }
      } else {
        double quota = 0, period = 0;
        std::ifstream quota_file("/sys/fs/cgroup/cpu" + path + "/cpu.cfs_quota_us");
        std::ifstream period_file("/sys/fs/cgroup/cpu" + path + "/cpu.cfs_period_us");
        if (quota_file >> quota && period_file >> period) take_lower(&limit, quota_processors(quota, period));
      }
      const size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);  // "/a/b" -> "/a" -> "": the root last
    }
  }
  return limit;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Amx:
      return "amx";
    default:
      return "portable";
  }
}

Isa isa() {
  static const Isa chosen = choose_isa();
  return chosen;
}

int available_processors() {
  static const int count = [] {
    const int allowed = affinity_processors(), quota = cgroup_processors();
    return quota > 0 ? std::min(allowed, quota) : allowed;
  }();
  return count;
}

}  // namespace aloft
