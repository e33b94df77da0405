// Device and pinned host memory.
//
// Device memory another process can map (IPC, shareable handles) is pages of one memfd per device and process, mapped
// shared. A large block starts out private instead, because only then does the kernel give it huge pages on hosts that
// keep them off for shared memory (the default); it moves to the file when it is exported. Either way nothing is
// committed before it is touched and the kernel takes it back when the last process that maps it ends, however it
// ends. Offsets in the file are never reused.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "acl/state.h"

namespace aloft {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2u << 20;

inline uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

enum class Backing { File, Private };

// Physical pages, released (hole punched, capacity given back) when the last user lets go.
class Pages {
 public:
  // Takes `size` bytes (a multiple of kPage) of the device's capacity; null with *code and text set when there is
  // not enough. Private pages are mapped once, whole.
  static std::shared_ptr<Pages> allocate(int device, uint64_t size, Backing backing, aclError* code);
  // Pages of another process: /proc/<pid>/fd/<fd>, checked to be the memfd with this inode.
  static std::shared_ptr<Pages> import(int pid, int fd, uint64_t inode, uint64_t offset, uint64_t size, int device,
                                       aclError* code);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  int device() const { return device_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }  // -1: private
  uint64_t offset() const { return offset_; }
  uint64_t inode() const { return inode_; }
  bool imported() const { return imported_; }
  // Maps [offset, offset + size) at exactly `address` (already reserved).
  bool map_at(void* address, uint64_t offset, uint64_t size) const;
  // Moves private pages, mapped at `address`, to the file, contents and address kept. The caller has stopped every
  // stream and copy of the process (StoppedStreams).
  aclError publish(void* address);

 private:
  Pages(int device, int fd, uint64_t inode, uint64_t offset, uint64_t size, bool imported)
      : device_(device), fd_(fd), inode_(inode), offset_(offset), size_(size), imported_(imported) {}
  aclError place_in_file();
  const int device_;
  int fd_;
  uint64_t inode_;
  uint64_t offset_;
  const uint64_t size_;
  const bool imported_;
};

// Who owns an address. Device ranges carry their pages; host ranges are pinned or registered memory.
enum class RangeKind { Device, Mapped, Imported, Pinned, Registered };

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;         // as asked for: bytes after it are out of bounds
  uint64_t mapped_end = 0;  // end of the mapping (whole pages)
  int device = -1;          // -1: host
  RangeKind kind = RangeKind::Device;
  uint64_t pages_offset = 0;  // where in `pages` the range begins
  std::shared_ptr<Pages> pages;
};

void add_range(const Range& range);
// Removes the range that begins at `address` if it is of one of the kinds; false when there is none.
bool take_range(const void* address, std::initializer_list<RangeKind> kinds, Range* taken);
bool find_range(const void* address, Range* found);
// True when any range reaches into [begin, end).
bool any_range(uint64_t begin, uint64_t end);

// Reserves address space without access; alignment is a power of two of at least kPage.
void* reserve(uint64_t size, uint64_t alignment, void* hint);
void unreserve(void* address, uint64_t size);

// Calls visit(first, last) for every run of pages of [begin, end) (page-aligned, private) that was ever touched.
void for_touched(uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& visit);
// Held shared by copies that pass no stream, alone by whoever moves pages.
std::shared_mutex& direct_copies();

uint64_t capacity(int device);
uint64_t used_by_all(int device);  // by every process on this virtual device

// Checks an operand of a copy or fill; `what` and `side` are for the message.
aclError check_device_operand(const void* address, uint64_t size, const char* what, const char* side);

}  // namespace aloft
