// Address space and physical pages apart (expandable segments), and memory of other processes.
//
// What is exported is described by a small memfd of the exporting process; the handle given out names that process and
// descriptor. Importers reach both through /proc, so nothing outlives the processes and nothing has to be cleaned up.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "acl/memory.h"
#include "acl/stream.h"

namespace aloft {
namespace {

constexpr uint64_t kExportMagic = 0xa10f7e4907100001ull;
constexpr int kMaxImporters = 128;

struct Export {
  uint64_t magic;
  uint64_t inode;
  uint64_t offset;  // in the memory file
  uint64_t size;
  int32_t fd;
  int32_t device;
  int32_t open_to_all;
  int32_t importer_count;
  int32_t importers[kMaxImporters];
};

struct Physical {
  std::shared_ptr<Pages> pages;
  int export_fd = -1;
  bool fresh = false;  // never mapped
};

struct Table {
  std::mutex mutex;
  std::map<uint64_t, uint64_t> reservations;  // begin -> size
  std::unordered_map<void*, std::unique_ptr<Physical>> handles;
  std::map<std::string, int> exported_keys;    // IPC key -> descriptor of its description
  std::map<std::string, void*> imported_keys;  // IPC key -> address it is mapped at
};

Table& table() {
  static Table* const t = new Table;
  return *t;
}

// The reservation that holds [at, at + size); null when there is none.
const std::pair<const uint64_t, uint64_t>* reservation_of(uint64_t at, uint64_t size) {
  auto& all = table().reservations;
  auto it = all.upper_bound(at);
  if (it == all.begin()) return nullptr;
  --it;
  return at + size <= it->first + it->second ? &*it : nullptr;
}

int write_export(const Pages& pages, uint64_t extra_offset, uint64_t size, bool open_to_all, aclError* code) {
  Export description{};
  description.magic = kExportMagic;
  description.inode = pages.inode();
  description.offset = pages.offset() + extra_offset;
  description.size = size;
  description.fd = pages.fd();
  description.device = pages.device();
  description.open_to_all = open_to_all;
  const int fd = memfd_create("aloft-export", MFD_CLOEXEC);
  if (fd < 0 || pwrite(fd, &description, sizeof description, 0) != static_cast<ssize_t>(sizeof description)) {
    if (fd >= 0) close(fd);
    *code = fail(kRtInternalError, "the memory cannot be exported: %s", std::strerror(errno));
    return -1;
  }
  return fd;
}

aclError read_export(int pid, int fd, Export* description) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) {
    return fail(kInvalidParam, "the exporting process %d cannot be reached: %s", pid, std::strerror(errno));
  }
  const bool whole = pread(handle, description, sizeof *description, 0) == static_cast<ssize_t>(sizeof *description);
  close(handle);
  if (!whole || description->magic != kExportMagic) return fail(kInvalidParam, "this is not an exported memory handle");
  bool allowed = description->open_to_all || pid == getpid();
  for (int i = 0; i < description->importer_count; ++i) allowed = allowed || description->importers[i] == getpid();
  if (!allowed) return fail(207006, "process %d may not import this memory; its exporter has to name it", getpid());
  return kOk;
}

aclError add_importers(int fd, const int32_t* pids, size_t count) {
  Export description{};
  if (pread(fd, &description, sizeof description, 0) != static_cast<ssize_t>(sizeof description)) {
    return fail(kInvalidParam, "this is not an exported memory handle");
  }
  if (!pids || count + static_cast<size_t>(description.importer_count) > kMaxImporters) {
    return fail(kInvalidParam, "at most %d processes may import one handle", kMaxImporters);
  }
  for (size_t i = 0; i < count; ++i) description.importers[description.importer_count++] = pids[i];
  return pwrite(fd, &description, sizeof description, 0) == static_cast<ssize_t>(sizeof description)
             ? kOk
             : fail(kRtInternalError, "the handle cannot be updated: %s", std::strerror(errno));
}

struct PhysicalProperties {
  int32_t handle_type;
  int32_t allocation_type;
  int32_t attribute;
  struct {
    uint32_t id;
    int32_t type;  // 0: host, 1: device
  } location;
  uint64_t reserved;
};

}  // namespace
}  // namespace aloft

using namespace aloft;

ALOFT_API aclError aclrtReserveMemAddress(void** address, size_t size, size_t alignment, void* expected,
                                          uint64_t flags) {
  if (!address || size == 0) return fail(kInvalidParam, "aclrtReserveMemAddress: the address is null or the size 0");
  aclError code = kOk;
  if (!usable(&code)) return code;
  const uint64_t whole = round_up(size, kHugePage);
  void* base = reserve(whole, kHugePage, expected);
  if (!base) {
    return fail(kRtMemoryAllocation, "aclrtReserveMemAddress: no address space of %zu bytes: %s", size,
                std::strerror(errno));
  }
  std::lock_guard<std::mutex> lock(table().mutex);
  table().reservations[reinterpret_cast<uint64_t>(base)] = whole;
  *address = base;
  return kOk;
}

ALOFT_API aclError aclrtReleaseMemAddress(void* address) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto it = table().reservations.find(begin);
  if (it == table().reservations.end())
    return fail(kInvalidParam, "aclrtReleaseMemAddress: %p was not reserved", address);
  if (any_range(begin, begin + it->second)) {
    return fail(kInvalidParam, "aclrtReleaseMemAddress: memory is still mapped in the reservation at %p", address);
  }
  unreserve(address, it->second);
  table().reservations.erase(it);
  return kOk;
}

ALOFT_API aclError aclrtMallocPhysical(void** handle, size_t size, const void* properties, uint64_t flags) {
  if (!handle || !properties || size == 0) {
    return fail(kInvalidParam, "aclrtMallocPhysical: a null argument, or the size is 0");
  }
  const auto& wanted = *static_cast<const PhysicalProperties*>(properties);
  aclError code = kOk;
  if (!usable(&code)) return code;
  if (wanted.location.type != 1) {
    return fail(kRtFeatureUnsupported, "aclrtMallocPhysical: location type %d is not supported, only device memory (1)",
                wanted.location.type);
  }
  if (static_cast<int>(wanted.location.id) >= device_count()) {
    return fail(kRtInvalidDevice, "aclrtMallocPhysical: device %u does not exist", wanted.location.id);
  }
  auto physical = std::make_unique<Physical>();
  physical->pages = Pages::allocate(static_cast<int>(wanted.location.id), round_up(size, kPage), Backing::File, &code);
  if (!physical->pages) return code;
  physical->fresh = true;
  std::lock_guard<std::mutex> lock(table().mutex);
  *handle = physical.get();
  table().handles[physical.get()] = std::move(physical);
  return kOk;
}

ALOFT_API aclError aclrtFreePhysical(void* handle) {
  std::unique_ptr<Physical> gone;
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto it = table().handles.find(handle);
  if (it == table().handles.end()) return fail(kRtInvalidHandle, "aclrtFreePhysical: %p is not a handle", handle);
  gone = std::move(it->second);  // mappings of it keep the pages
  table().handles.erase(it);
  if (gone->export_fd >= 0) close(gone->export_fd);
  return kOk;
}

ALOFT_API aclError aclrtMapMem(void* address, size_t size, size_t offset, void* handle, uint64_t flags) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto it = table().handles.find(handle);
  if (it == table().handles.end()) return fail(kRtInvalidHandle, "aclrtMapMem: %p is not a handle", handle);
  const auto& pages = it->second->pages;
  if (size == 0 || size % kPage || begin % kPage || offset % kPage || size > pages->size() ||
      offset > pages->size() - size) {
    return fail(kInvalidParam, "aclrtMapMem: %zu bytes at offset %zu of a handle of %llu bytes, address %p", size,
                offset, static_cast<unsigned long long>(pages->size()), address);
  }
  if (!reservation_of(begin, size)) {
    return fail(kInvalidParam, "aclrtMapMem: %zu bytes at %p are not inside a reservation", size, address);
  }
  if (any_range(begin, begin + size)) {
    return fail(kInvalidParam, "aclrtMapMem: memory is mapped at %p already", address);
  }
  if (!pages->map_at(address, offset, size)) {
    return fail(kRtMemoryAllocation, "aclrtMapMem: %zu bytes at %p: %s", size, address, std::strerror(errno));
  }
  Range range;
  range.begin = begin;
  range.end = range.mapped_end = begin + size;
  range.device = pages->device();
  range.kind = RangeKind::Mapped;
  range.pages_offset = offset;
  range.pages = pages;
  add_range(range);
  if (it->second->fresh) poison_if_capturing(address, size);
  it->second->fresh = false;
  return kOk;
}

ALOFT_API aclError aclrtUnmapMem(void* address) {
  Range range;
  if (!find_range(address, &range) || range.kind != RangeKind::Mapped ||
      range.begin != reinterpret_cast<uint64_t>(address)) {
    return fail(kInvalidParam, "aclrtUnmapMem: nothing was mapped at %p", address);
  }
  const aclError waited = quiesce(range.device, "aclrtUnmapMem");
  if (waited != kOk) return waited;
  if (!take_range(address, {RangeKind::Mapped}, &range)) {
    return fail(kInvalidParam, "aclrtUnmapMem: %p is being unmapped by another thread", address);
  }
  if (mmap(address, range.end - range.begin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    return fail(kRtInternalError, "aclrtUnmapMem: %s", std::strerror(errno));
  }
  return kOk;
}

// handle types: 0 none, 2 POSIX. The shareable handle is (process, descriptor) in one number.
ALOFT_API aclError aclrtMemExportToShareableHandle(void* handle, int type, uint64_t flags, uint64_t* shareable) {
  if (!shareable) return fail(kInvalidParam, "aclrtMemExportToShareableHandle: the output is null");
  aclError code = kOk;
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto it = table().handles.find(handle);
  if (it == table().handles.end()) {
    return fail(kRtInvalidHandle, "aclrtMemExportToShareableHandle: %p is not a handle", handle);
  }
  Physical& physical = *it->second;
  if (physical.pages->imported()) {
    return fail(kRtFeatureUnsupported, "aclrtMemExportToShareableHandle: imported memory cannot be exported again");
  }
  if (physical.export_fd < 0) {
    physical.export_fd = write_export(*physical.pages, 0, physical.pages->size(), (flags & 1) != 0, &code);
  }
  if (physical.export_fd < 0) return code;
  *shareable = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint32_t>(physical.export_fd);
  return kOk;
}

ALOFT_API aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t* pids, size_t count) {
  if (static_cast<int>(shareable >> 32) != getpid()) {
    return fail(kInvalidParam, "aclrtMemSetPidToShareableHandle: the handle belongs to process %d",
                static_cast<int>(shareable >> 32));
  }
  std::lock_guard<std::mutex> lock(table().mutex);
  return add_importers(static_cast<int>(shareable & 0xffffffff), pids, count);
}

ALOFT_API aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void** handle) {
  if (!handle) return fail(kInvalidParam, "aclrtMemImportFromShareableHandle: the output is null");
  aclError code = kOk;
  if (!usable(&code)) return code;
  if (device < 0 || device >= device_count()) {
    return fail(kRtInvalidDevice, "aclrtMemImportFromShareableHandle: device %d does not exist", device);
  }
  const int pid = static_cast<int>(shareable >> 32);
  Export description{};
  if ((code = read_export(pid, static_cast<int>(shareable & 0xffffffff), &description)) != kOk) return code;
  auto physical = std::make_unique<Physical>();
  physical->pages =
      Pages::import(pid, description.fd, description.inode, description.offset, description.size, device, &code);
  if (!physical->pages) return code;
  std::lock_guard<std::mutex> lock(table().mutex);
  *handle = physical.get();
  table().handles[physical.get()] = std::move(physical);
  return kOk;
}

// --- IPC by key -----------------------------------------------------------------------------------------------------

ALOFT_API aclError aclrtIpcMemGetExportKey(void* address, size_t size, char* key, size_t length, uint64_t flags) {
  if (!key) return fail(kInvalidParam, "aclrtIpcMemGetExportKey: the key is null");
  Range range;
  const auto at = reinterpret_cast<uint64_t>(address);
  if (size == 0 || !find_range(address, &range) || !range.pages || at + size > range.end) {
    return fail(kInvalidParam, "aclrtIpcMemGetExportKey: %zu bytes at %p are not one device allocation", size, address);
  }
  if (range.pages->imported()) {
    return fail(kRtFeatureUnsupported, "aclrtIpcMemGetExportKey: imported memory cannot be exported again");
  }
  aclError code = kOk;
  {
    StoppedStreams stopped("aclrtIpcMemGetExportKey");
    std::unique_lock<std::shared_mutex> copies(direct_copies());
    code = stopped.code() == kOk ? range.pages->publish(reinterpret_cast<void*>(range.begin)) : stopped.code();
  }
  if (code != kOk) return code;
  const int fd = write_export(*range.pages, range.pages_offset + (at - range.begin), size, (flags & 1) != 0, &code);
  if (fd < 0) return code;
  char text[64];
  std::snprintf(text, sizeof text, "aloft-ipc/%d/%d", static_cast<int>(getpid()), fd);
  if (std::strlen(text) + 1 > length) {
    close(fd);
    return fail(kInvalidParam, "aclrtIpcMemGetExportKey: a key needs %zu bytes, %zu were given", std::strlen(text) + 1,
                length);
  }
  std::memset(key, 0, length);
  std::strcpy(key, text);
  std::lock_guard<std::mutex> lock(table().mutex);
  table().exported_keys[text] = fd;
  return kOk;
}

ALOFT_API aclError aclrtIpcMemSetImportPid(const char* key, int32_t* pids, size_t count) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto it = table().exported_keys.find(key ? key : "");
  if (it == table().exported_keys.end())
    return fail(kInvalidParam, "aclrtIpcMemSetImportPid: not a key of this process");
  return add_importers(it->second, pids, count);
}

ALOFT_API aclError aclrtIpcMemImportByKey(void** address, const char* key, uint64_t flags) {
  if (!address || !key) return fail(kInvalidParam, "aclrtIpcMemImportByKey: an argument is null");
  aclError code = kOk;
  const Context* context = current_context(&code);
  if (!context) return code;
  int pid = 0, fd = 0;
  if (std::sscanf(key, "aloft-ipc/%d/%d", &pid, &fd) != 2) {
    return fail(kInvalidParam, "aclrtIpcMemImportByKey: this is not a key of a virtual NPU");
  }
  std::lock_guard<std::mutex> lock(table().mutex);
  if (table().imported_keys.count(key))
    return fail(kInvalidParam, "aclrtIpcMemImportByKey: the key is imported already");
  Export description{};
  if ((code = read_export(pid, fd, &description)) != kOk) return code;
  const uint64_t inside = description.offset % kPage;  // the export may begin in the middle of a page
  const uint64_t whole = round_up(inside + description.size, kPage);
  auto pages =
      Pages::import(pid, description.fd, description.inode, description.offset - inside, whole, context->device, &code);
  if (!pages) return code;
  void* base = reserve(whole, kPage, nullptr);
  if (!base || !pages->map_at(base, 0, whole)) {
    if (base) unreserve(base, whole);
    return fail(kRtMemoryAllocation, "aclrtIpcMemImportByKey: no address space: %s", std::strerror(errno));
  }
  Range range;
  range.begin = reinterpret_cast<uint64_t>(base) + inside;
  range.end = range.begin + description.size;
  range.mapped_end = reinterpret_cast<uint64_t>(base) + whole;
  range.device = context->device;
  range.kind = RangeKind::Imported;
  range.pages_offset = inside;
  range.pages = std::move(pages);
  add_range(range);
  *address = reinterpret_cast<void*>(range.begin);
  table().imported_keys[key] = *address;
  return kOk;
}

ALOFT_API aclError aclrtIpcMemClose(const char* key) {
  if (!key) return fail(kInvalidParam, "aclrtIpcMemClose: the key is null");
  std::unique_lock<std::mutex> lock(table().mutex);
  if (const auto it = table().imported_keys.find(key); it != table().imported_keys.end()) {
    void* address = it->second;
    lock.unlock();
    Range range;
    if (!find_range(address, &range)) return fail(kInvalidParam, "aclrtIpcMemClose: the key is closed already");
    const aclError waited = quiesce(range.device, "aclrtIpcMemClose");
    if (waited != kOk) return waited;
    lock.lock();
    table().imported_keys.erase(key);
    if (take_range(address, {RangeKind::Imported}, &range)) {
      const uint64_t base = range.begin / kPage * kPage;
      unreserve(reinterpret_cast<void*>(base), range.mapped_end - base);
    }
    return kOk;
  }
  if (const auto it = table().exported_keys.find(key); it != table().exported_keys.end()) {
    close(it->second);
    table().exported_keys.erase(it);
    return kOk;
  }
  return fail(kInvalidParam, "aclrtIpcMemClose: %s is not a key of this process", key);
}
