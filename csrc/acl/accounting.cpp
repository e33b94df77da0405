// Each process that uses a device publishes a ledger: a small memfd, found by the others through the name of an
// abstract socket it holds ("@aloft-npu/<host key>/<pid>/<fd>") and read through /proc/<pid>/fd/<fd>. Both vanish with
// the process, however it ends, so nothing is left behind and no liveness check is needed.
//
// Processes share virtual devices when they describe the same host: same user, ALOFT_SOC, ALOFT_DEVICES,
// ALOFT_HBM_GIB and ALOFT_HOST.
#include "acl/accounting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>

#include "acl/memory.h"

namespace aloft {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kMagic = 0xa10f71ed6e720001ull;

struct Ledger {
  uint64_t magic;
  std::atomic<uint64_t> total;              // bytes of each device as this process takes it; 0: not settled yet
  std::atomic<uint64_t> used[kMaxDevices];  // by physical device
  std::atomic<uint32_t> touched[kMaxDevices];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "other processes read the ledger");

struct Peers {
  uint64_t total = 0;  // what the first of them settled on
  uint64_t used[kMaxDevices] = {};
  bool touched[kMaxDevices] = {};
};

std::string host_key() {
  uint64_t hash = 1469598103934665603ull;
  auto mix = [&hash](const std::string& text) {
    for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
    hash = (hash ^ 0xff) * 1099511628211ull;
  };
  for (const char* name : {"ALOFT_DEVICES", "ALOFT_HBM_GIB", "ALOFT_HOST"}) {
    const char* value = std::getenv(name);
    mix(value ? value : "");
  }
  mix(settings().profile->key);
  char text[48];
  std::snprintf(text, sizeof text, "%u.%016llx", static_cast<unsigned>(getuid()),
                static_cast<unsigned long long>(hash));
  return text;
}

std::mutex g_mutex;
Ledger* g_ledger = nullptr;  // guarded by g_mutex while it is made, then constant
std::string* g_prefix = nullptr;
std::atomic<uint64_t> g_peak[kMaxDevices];

Ledger& ledger() {
  static Ledger* const made = [] {
    static Ledger fallback;  // used alone if the memfd cannot be made
    Ledger* result = &fallback;
    const int fd = memfd_create("aloft-ledger", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, sizeof(Ledger)) == 0) {
      void* at = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (at != MAP_FAILED) result = static_cast<Ledger*>(at);
    }
    result->magic = kMagic;
    g_prefix = new std::string("aloft-npu/" + host_key() + "/");
    const int name_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && name_socket >= 0) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const std::string name = *g_prefix + std::to_string(getpid()) + "/" + std::to_string(fd);
      std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof address.sun_path - 1));
      // Held until the process ends; a failure (no network namespace) leaves this process uncounted by others.
      (void)!bind(name_socket, reinterpret_cast<sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
    }
    g_ledger = result;
    return result;
  }();
  return *made;
}

Peers read_peers() {
  ledger();
  Peers peers;
  std::ifstream file("/proc/net/unix");
  std::string line;
  const std::string wanted = "@" + *g_prefix;
  while (std::getline(file, line)) {
    const size_t at = line.find(wanted);
    int pid = 0, fd = 0;
    if (at == std::string::npos || std::sscanf(line.c_str() + at + wanted.size(), "%d/%d", &pid, &fd) != 2) continue;
    if (pid == getpid()) continue;
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (handle < 0) continue;  // gone, or held by a forked child only
    alignas(8) unsigned char bytes[sizeof(Ledger)];
    const bool whole = pread(handle, bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes);
    close(handle);
    const auto* other = reinterpret_cast<const Ledger*>(bytes);
    if (!whole || other->magic != kMagic) continue;
    if (other->total.load()) peers.total = other->total.load();
    for (int i = 0; i < kMaxDevices; ++i) {
      peers.used[i] += other->used[i].load();
      peers.touched[i] = peers.touched[i] || other->touched[i].load() != 0;
    }
  }
  return peers;
}

// What the others use; looked at again after a few milliseconds.
Peers peers() {
  static std::mutex mutex;
  static Peers last;
  static std::chrono::steady_clock::time_point when;
  std::lock_guard<std::mutex> lock(mutex);
  const auto now = std::chrono::steady_clock::now();
  if (when == std::chrono::steady_clock::time_point() || now - when > std::chrono::milliseconds(5)) {
    last = read_peers();
    when = std::chrono::steady_clock::now();
  }
  return last;
}

uint64_t read_number(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text) || text.empty() || text[0] < '0' || text[0] > '9') return otherwise;  // "max"
  return std::strtoull(text.c_str(), nullptr, 10);
}

// Page cache the kernel gives back before it refuses memory.
uint64_t reclaimable(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0, total = 0;
  while (file >> name >> value) {
    if (name == "inactive_file" || name == "total_inactive_file") total = value;
  }
  return total;
}

// Memory the host still has, or the control groups this process is in, whichever is less.
uint64_t host_available() {
  uint64_t least = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::string line;
  std::ifstream memory("/proc/meminfo");
  while (std::getline(memory, line)) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) least = std::min<uint64_t>(least, kib << 10);
  }
  std::ifstream groups("/proc/self/cgroup");
  while (std::getline(groups, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::string path = line.substr(second + 1);; path = path.substr(0, path.rfind('/'))) {
      const std::string at = root + (path == "/" ? "" : path);
      const uint64_t limit = read_number(at + (unified ? "/memory.max" : "/memory.limit_in_bytes"), UINT64_MAX);
      if (limit < (1ull << 60)) {
        const uint64_t usage = read_number(at + (unified ? "/memory.current" : "/memory.usage_in_bytes"), 0);
        const uint64_t held = usage - std::min(usage, reclaimable(at + "/memory.stat"));
        least = std::min(least, limit > held ? limit - held : 0);
      }
      if (path.empty() || path == "/") break;
    }
  }
  return least;
}

int physical(int device) { return settings().visible[device]; }

// The size of every device: given, or what a process of this host settled on before, or a share of the host.
uint64_t settle_total(int device) {
  const Settings& s = settings();
  if (s.hbm_gib > 0) return round_up(static_cast<uint64_t>(s.hbm_gib * 1073741824.0), kPage);
  const Peers others = read_peers();
  if (others.total) return others.total;
  ledger().touched[physical(device)] = 1;
  uint64_t in_use = 0;
  for (int i = 0; i < kMaxDevices; ++i) in_use += others.touched[i] || ledger().touched[i].load() != 0;
  const char* ranks = std::getenv("LOCAL_WORLD_SIZE");  // torchrun: the devices about to be used
  if (ranks) in_use = std::max<uint64_t>(in_use, std::strtoull(ranks, nullptr, 10));
  in_use = std::min<uint64_t>(std::max<uint64_t>(in_use, 1), std::max<size_t>(s.visible.size(), 1));
  const uint64_t share = host_available() / in_use / kHugePage * kHugePage;
  return std::min(s.profile->hbm_bytes, std::max(share, kHugePage));
}

}  // namespace

uint64_t capacity(int device) {
  Ledger& own = ledger();
  own.touched[physical(device)].store(1, std::memory_order_relaxed);
  if (const uint64_t total = own.total.load()) return total;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (own.total.load() == 0) own.total = settle_total(device);
  return own.total.load();
}

uint64_t used_by_all(int device) {
  const int index = physical(device);
  return ledger().used[index].load() + peers().used[index];
}

bool take_capacity(int device, uint64_t bytes) {
  const int index = physical(device);
  const uint64_t total = capacity(device);
  const uint64_t others = peers().used[index];
  std::atomic<uint64_t>& own = ledger().used[index];
  uint64_t used = own.load();
  do {
    if (bytes > total || used + others > total - bytes) return false;
  } while (!own.compare_exchange_weak(used, used + bytes));
  uint64_t peak = g_peak[index].load();
  while (peak < used + bytes && !g_peak[index].compare_exchange_weak(peak, used + bytes)) {
  }
  return true;
}

void give_capacity(int device, uint64_t bytes) { ledger().used[physical(device)].fetch_sub(bytes); }

uint64_t peak_use(int device) { return g_peak[physical(device)].load(); }

}  // namespace aloft
