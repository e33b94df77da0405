#include "acl/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <string>

#include "acl/accounting.h"
#include "acl/beside.h"
#include "acl/stream.h"

namespace aloft {
namespace {

struct Ranges {
  std::shared_mutex mutex;
  std::map<uint64_t, Range> by_begin;
  std::atomic<uint64_t> generation{1};  // changes when a range goes away: cached look-ups expire
};

Ranges& ranges() {
  static Ranges* const r = new Ranges;
  return *r;
}

// What a look-up needs, without the shared ownership.
struct Extent {
  uint64_t begin = 1, end = 0;
  int device = -2;
};

// Extent that holds `address`; a one-entry cache per thread makes the common case a few nanoseconds.
bool lookup(uint64_t address, Extent* found) {
  thread_local Extent last;
  thread_local uint64_t last_generation = 0;
  Ranges& r = ranges();
  const uint64_t generation = r.generation.load(std::memory_order_acquire);
  if (generation == last_generation && address >= last.begin && address < last.end) {
    *found = last;
    return true;
  }
  std::shared_lock<std::shared_mutex> lock(r.mutex);
  auto it = r.by_begin.upper_bound(address);
  if (it == r.by_begin.begin()) return false;
  --it;
  if (address >= it->second.end) return false;
  last = *found = Extent{it->second.begin, it->second.end, it->second.device};
  last_generation = generation;
  return true;
}

// The memfd of a device in this process and how far it has been given out.
struct DeviceFile {
  std::mutex mutex;
  int fd = -1;
  uint64_t inode = 0;
  uint64_t end = 0;
};

DeviceFile& device_file(int device) {
  static DeviceFile* const files = new DeviceFile[64];
  return files[device];
}

}  // namespace

aclError Pages::place_in_file() {
  DeviceFile& file = device_file(device_);
  std::lock_guard<std::mutex> lock(file.mutex);
  if (file.fd < 0) {
    const std::string name = "aloft-npu" + std::to_string(device_);
    file.fd = memfd_create(name.c_str(), MFD_CLOEXEC);
    struct stat status{};
    if (file.fd >= 0 && fstat(file.fd, &status) == 0) file.inode = status.st_ino;
  }
  const uint64_t offset = round_up(file.end, size_ >= kHugePage ? kHugePage : kPage);
  if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(offset + size_)) != 0) {
    return fail(kRtMemoryAllocation, "no memory file for device %d: %s", device_, std::strerror(errno));
  }
  file.end = offset + size_;
  fd_ = file.fd;
  inode_ = file.inode;
  offset_ = offset;
  return kOk;
}

std::shared_ptr<Pages> Pages::allocate(int device, uint64_t size, Backing backing, aclError* code) {
  if (!take_capacity(device, size)) {
    const uint64_t total = capacity(device), used = used_by_all(device);
    *code =
        fail(kRtMemoryAllocation,
             "device %d is out of memory: %llu bytes asked for, %llu of %llu free (ALOFT_HBM_GIB sets the size)",
             device, static_cast<unsigned long long>(size),
             static_cast<unsigned long long>(total > used ? total - used : 0), static_cast<unsigned long long>(total));
    return nullptr;
  }
  std::shared_ptr<Pages> pages(new Pages(device, -1, 0, 0, size, false));
  if (backing == Backing::File && (*code = pages->place_in_file()) != kOk) return nullptr;
  return pages;
}

std::shared_ptr<Pages> Pages::import(int pid, int fd, uint64_t inode, uint64_t offset, uint64_t size, int device,
                                     aclError* code) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) {
    *code = fail(kInvalidParam, "the memory's process %d cannot be reached: %s", pid, std::strerror(errno));
    return nullptr;
  }
  struct stat status{};
  if (fstat(own, &status) != 0 || status.st_ino != inode || static_cast<uint64_t>(status.st_size) < offset + size) {
    close(own);
    *code = fail(kInvalidParam, "the memory that process %d exported is gone", pid);
    return nullptr;
  }
  return std::shared_ptr<Pages>(new Pages(device, own, inode, offset, size, true));
}

Pages::~Pages() {
  if (imported_) {
    close(fd_);
    return;
  }
  if (fd_ >= 0)
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_), static_cast<off_t>(size_));
  give_capacity(device_, size_);
}

bool Pages::map_at(void* address, uint64_t offset, uint64_t size) const {
  const bool in_file = fd_ >= 0;
  void* got = mmap(address, size, PROT_READ | PROT_WRITE,
                   (in_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_FIXED | MAP_NORESERVE, fd_,
                   static_cast<off_t>(in_file ? offset_ + offset : 0));
  if (got == MAP_FAILED) return false;
  if (!in_file) madvise(got, size, MADV_HUGEPAGE);  // where the host has none, small pages do
  madvise(got, size, MADV_DONTFORK);  // a forked child may not use the device, so it need not see its memory
  return true;
}

aclError Pages::publish(void* address) {
  if (fd_ >= 0) return kOk;
  const aclError code = place_in_file();
  if (code != kOk) return code;
  void* copy =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, static_cast<off_t>(offset_));
  if (copy != MAP_FAILED) {
    const auto begin = reinterpret_cast<uint64_t>(address);
    for_touched(begin, begin + size_, [&](uint64_t first, uint64_t last) {
      std::memcpy(static_cast<char*>(copy) + (first - begin), reinterpret_cast<void*>(first), last - first);
    });
    munmap(copy, size_);
  }
  if (copy == MAP_FAILED || !map_at(address, 0, size_)) {
    const int reason = errno;
    fd_ = -1;  // still private; the extent of the file stays unused
    return fail(kRtMemoryAllocation, "the memory at %p cannot be shared: %s", address, std::strerror(reason));
  }
  return kOk;
}

void for_touched(uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& visit) {
  // An entry of pagemap has bit 63 for a page in memory and bit 62 for one swapped out; neither: never touched.
  static const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  constexpr uint64_t kBatch = 512;
  uint64_t entries[kBatch], run = 0;  // run: where the present run of touched pages began; 0: in none
  for (uint64_t at = begin; at < end;) {
    const uint64_t count = std::min(kBatch, (end - at) / kPage);
    const auto bytes = static_cast<ssize_t>(count * sizeof entries[0]);
    const bool known = pagemap >= 0 &&
                       pread(pagemap, entries, static_cast<size_t>(bytes), static_cast<off_t>(at / kPage * 8)) == bytes;
    for (uint64_t i = 0; i < count; ++i, at += kPage) {
      const bool touched = !known || entries[i] >> 62;
      if (touched && !run) run = at;
      if (!touched && run) {
        visit(run, at);
        run = 0;
      }
    }
  }
  if (run) visit(run, end);
}

std::shared_mutex& direct_copies() {
  static auto* const mutex = new std::shared_mutex;
  return *mutex;
}

void* reserve(uint64_t size, uint64_t alignment, void* hint) {
  const uint64_t extra = alignment > kPage ? alignment : 0;
  void* base = mmap(hint, size + extra, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const uint64_t start = reinterpret_cast<uint64_t>(base);
  const uint64_t aligned = extra ? round_up(start, alignment) : start;
  if (aligned > start) munmap(base, aligned - start);
  const uint64_t tail = start + size + extra - (aligned + size);
  if (tail) munmap(reinterpret_cast<void*>(aligned + size), tail);
  return reinterpret_cast<void*>(aligned);
}

void unreserve(void* address, uint64_t size) { munmap(address, size); }

void add_range(const Range& range) {
  Ranges& r = ranges();
  std::unique_lock<std::shared_mutex> lock(r.mutex);
  r.by_begin[range.begin] = range;
}

bool take_range(const void* address, std::initializer_list<RangeKind> kinds, Range* taken) {
  Ranges& r = ranges();
  std::unique_lock<std::shared_mutex> lock(r.mutex);
  auto it = r.by_begin.find(reinterpret_cast<uint64_t>(address));
  if (it == r.by_begin.end()) return false;
  bool wanted = false;
  for (RangeKind kind : kinds) wanted = wanted || kind == it->second.kind;
  if (!wanted) return false;
  *taken = it->second;
  r.by_begin.erase(it);
  r.generation.fetch_add(1, std::memory_order_release);
  return true;
}

bool find_range(const void* address, Range* found) {
  const auto value = reinterpret_cast<uint64_t>(address);
  Ranges& r = ranges();
  std::shared_lock<std::shared_mutex> lock(r.mutex);
  auto it = r.by_begin.upper_bound(value);
  if (it == r.by_begin.begin()) return false;
  --it;
  if (value >= it->second.end) return false;
  *found = it->second;
  return true;
}

bool any_range(uint64_t begin, uint64_t end) {
  Ranges& r = ranges();
  std::shared_lock<std::shared_mutex> lock(r.mutex);
  auto it = r.by_begin.lower_bound(end);
  return it != r.by_begin.begin() && (--it)->second.end > begin;
}

aclError check_device_operand(const void* address, uint64_t size, const char* what, const char* side) {
  if (aloftCheckRange(address, size) == 0) return kOk;
  const int device = aloftDeviceOf(address);
  if (device < 0) {
    return fail(kRtInvalidParam, "%s: the %s %p is not device memory", what, side, address);
  }
  return fail(kRtInvalidParam, "%s: %llu bytes from %p run past the end of the %s's allocation on device %d", what,
              static_cast<unsigned long long>(size), address, side, device);
}

}  // namespace aloft

using namespace aloft;

ALOFT_API int aloftDeviceOf(const void* address) {
  Extent extent;
  return lookup(reinterpret_cast<uint64_t>(address), &extent) ? extent.device : -2;
}

ALOFT_API int aloftCheckRange(const void* address, size_t size) {
  uint64_t at = reinterpret_cast<uint64_t>(address);
  uint64_t left = size;
  int device = -1;
  for (;;) {  // memory mapped piece by piece (expandable segments) lies in several neighbouring ranges
    Extent extent;
    if (!lookup(at, &extent) || extent.device < 0) return 1;
    if (device >= 0 && extent.device != device) return 1;
    device = extent.device;
    const uint64_t here = extent.end - at;
    if (left <= here) return 0;
    left -= here;
    at = extent.end;
  }
}

ALOFT_API aclError aclrtMalloc(void** address, size_t size, int policy) {
  if (!address || size == 0) return fail(kInvalidParam, "aclrtMalloc: the address is null or the size is 0");
  aclError code = kOk;
  const Context* context = current_context(&code);
  if (!context) return code;
  const uint64_t whole = round_up(size, kPage);
  if (whole < size) return fail(kRtMemoryAllocation, "aclrtMalloc: %zu bytes are more than any device has", size);
  auto pages = Pages::allocate(context->device, whole, whole >= kHugePage ? Backing::Private : Backing::File, &code);
  if (!pages) return code;
  // One inaccessible page behind each allocation: a kernel that runs past the end faults instead of corrupting.
  void* base = reserve(whole + kPage, whole >= kHugePage ? kHugePage : kPage, nullptr);
  if (!base || !pages->map_at(base, 0, whole)) {
    if (base) unreserve(base, whole + kPage);
    return fail(kRtMemoryAllocation, "aclrtMalloc: the host has no address space for %zu bytes: %s", size,
                std::strerror(errno));
  }
  Range range;
  range.begin = reinterpret_cast<uint64_t>(base);
  range.end = range.begin + whole;
  range.mapped_end = range.begin + whole + kPage;
  range.device = context->device;
  range.kind = RangeKind::Device;
  range.pages = std::move(pages);
  add_range(range);
  poison_if_capturing(base, whole);
  *address = base;
  return kOk;
}

ALOFT_API aclError aclrtMallocAlign32(void** address, size_t size, int policy) {
  return aclrtMalloc(address, size, policy);
}

ALOFT_API aclError aclrtFree(void* address) {
  Range range;
  if (!find_range(address, &range) || range.kind != RangeKind::Device ||
      range.begin != reinterpret_cast<uint64_t>(address)) {
    return fail(kRtInvalidParam, "aclrtFree: %p was not returned by aclrtMalloc, or is free already", address);
  }
  if (g_forked) {
    aclError code = kOk;
    usable(&code);
    return code;
  }
  const aclError waited = quiesce(range.device, "aclrtFree");
  if (waited != kOk) return waited;
  if (!take_range(address, {RangeKind::Device}, &range)) {
    return fail(kRtInvalidParam, "aclrtFree: %p is being freed by another thread", address);
  }
  unreserve(address, range.mapped_end - range.begin);
  return kOk;
}

ALOFT_API aclError aclrtMallocHost(void** address, size_t size) {
  if (!address || size == 0) return fail(kInvalidParam, "aclrtMallocHost: the address is null or the size is 0");
  const uint64_t whole = round_up(size, kPage);
  void* base = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return fail(kRtMemoryAllocation, "aclrtMallocHost: the host has no %zu bytes: %s", size, std::strerror(errno));
  }
  Range range;
  range.begin = reinterpret_cast<uint64_t>(base);
  range.end = range.mapped_end = range.begin + whole;
  range.kind = RangeKind::Pinned;
  add_range(range);
  *address = base;
  return kOk;
}

// The configuration names a module, a device or an address kind: none matters to host memory here.
ALOFT_API aclError aclrtMallocHostWithCfg(void** address, uint64_t size, void* config) {
  return aclrtMallocHost(address, size);
}

ALOFT_API aclError aclrtFreeHost(void* address) {
  Range range;
  join_all_beside();  // to the host's program, what it has launched inline is over
  if (!take_range(address, {RangeKind::Pinned}, &range)) {
    return fail(kRtInvalidParam, "aclrtFreeHost: %p was not returned by aclrtMallocHost, or is free already", address);
  }
  munmap(address, range.mapped_end - range.begin);
  return kOk;
}

// Registered memory is ordinary host memory that copies may treat as pinned.
static aclError register_host(void* address, uint64_t size, void** device_address) {
  if (!address || size == 0) return fail(kInvalidParam, "aclrtHostRegister: the address is null or the size is 0");
  Range range;
  if (find_range(address, &range)) {
    return fail(507910, "aclrtHostRegister: the memory at %p is registered or pinned already", address);
  }
  range = Range();
  range.begin = reinterpret_cast<uint64_t>(address);
  range.end = range.mapped_end = range.begin + size;
  range.kind = RangeKind::Registered;
  add_range(range);
  if (device_address) *device_address = address;
  return kOk;
}

ALOFT_API aclError aclrtHostRegister(void* address, uint64_t size, int type, void** device_address) {
  return register_host(address, size, device_address);
}

ALOFT_API aclError aclrtHostRegisterV2(void* address, uint64_t size, uint32_t flag) {
  return register_host(address, size, nullptr);
}

ALOFT_API aclError aclrtHostUnregister(void* address) {
  Range range;
  join_all_beside();
  if (!take_range(address, {RangeKind::Registered}, &range)) {
    return fail(507911, "aclrtHostUnregister: the memory at %p is not registered", address);
  }
  return kOk;
}

// attr 0, 2, 3 and 6, 7 ask about DDR, which the devices do not have apart from HBM.
ALOFT_API aclError aclrtGetMemInfo(int attr, size_t* free_bytes, size_t* total_bytes) {
  if (!free_bytes || !total_bytes) return fail(kInvalidParam, "aclrtGetMemInfo: an output is null");
  aclError code = kOk;
  const Context* context = current_context(&code);
  if (!context) return code;
  const uint64_t total = capacity(context->device), used = used_by_all(context->device);
  *total_bytes = total;
  *free_bytes = total > used ? total - used : 0;
  return kOk;
}

namespace {
struct PointerAttributes {
  uint32_t device;
  int32_t type;  // 0 host, 1 device, 2 unregistered
  uint32_t page_size;
  uint32_t reserved[4];
};
}  // namespace

ALOFT_API aclError aclrtPointerGetAttributes(const void* address, void* attributes) {
  if (!attributes) return fail(kInvalidParam, "aclrtPointerGetAttributes: attributes is null");
  const int device = aloftDeviceOf(address);
  PointerAttributes result{0, 2, 0, {0, 0, 0, 0}};
  if (device >= 0) {
    result = {static_cast<uint32_t>(device), 1, static_cast<uint32_t>(kPage), {0, 0, 0, 0}};
  } else if (device == -1) {
    result = {0, 0, static_cast<uint32_t>(kPage), {0, 0, 0, 0}};
  }
  *static_cast<PointerAttributes*>(attributes) = result;
  return kOk;
}
