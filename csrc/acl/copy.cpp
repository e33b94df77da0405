// Copies and fills.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "acl/beside.h"
#include "acl/memory.h"
#include "acl/stream.h"

namespace aloft {
namespace {

enum CopyKind { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault, kHostBufDevice, kInner, kInter };

// Checks both operands of a copy against its kind and reduces the kind to the first four.
aclError check_copy(const char* call, void* to, size_t room, const void* from, size_t count, int* kind) {
  if (count > room) return fail(kInvalidParam, "%s: %zu bytes do not fit the destination's %zu", call, count, room);
  if (count == 0) return kOk;
  if (!to || !from) return fail(kInvalidParam, "%s: the %s is null", call, to ? "source" : "destination");
  if (*kind < kHostToHost || *kind > kInter)
    return fail(kRtInvalidMemcpyKind, "%s: %d is not a kind of copy", call, *kind);
  const bool to_device = aloftDeviceOf(to) >= 0, from_device = aloftDeviceOf(from) >= 0;
  if (*kind == kDefault) *kind = (from_device ? 2 : 0) + (to_device ? 1 : 0);
  if (*kind == kHostBufDevice) *kind = kHostToDevice;
  if (*kind == kInner || *kind == kInter) *kind = kDeviceToDevice;
  const bool want_to = *kind == kHostToDevice || *kind == kDeviceToDevice;
  const bool want_from = *kind == kDeviceToHost || *kind == kDeviceToDevice;
  aclError code = kOk;
  if (want_to && (code = check_device_operand(to, count, call, "destination")) != kOk) return code;
  if (want_from && (code = check_device_operand(from, count, call, "source")) != kOk) return code;
  if (!want_to && to_device)
    return fail(kRtInvalidParam, "%s: the destination %p is device memory, the kind says host", call, to);
  if (!want_from && from_device)
    return fail(kRtInvalidParam, "%s: the source %p is device memory, the kind says host", call, from);
  return kOk;
}

const char* copy_name(int kind) {
  static const char* const names[] = {"copy host to host", "copy host to device", "copy device to host",
                                      "copy device to device"};
  return names[kind & 3];
}

}  // namespace
}  // namespace aloft

using namespace aloft;

// Zero-fills memory; whole pages of device memory that were never touched are left untouched, since they read as zero.
ALOFT_API void aloftFillZero(void* address, size_t size) {
  constexpr uint64_t kWorthwhile = 1u << 20;
  uint64_t at = reinterpret_cast<uint64_t>(address);
  const uint64_t end = at + size;
  Range range;
  while (end - at >= kWorthwhile && find_range(reinterpret_cast<void*>(at), &range) && range.pages) {
    const uint64_t stop = std::min(end, range.end);
    if (range.pages->fd() < 0) {
      const uint64_t first = std::min(round_up(at, kPage), stop), last = std::max(first, stop / kPage * kPage);
      std::memset(reinterpret_cast<void*>(at), 0, first - at);
      for_touched(first, last,
                  [](uint64_t from, uint64_t to) { std::memset(reinterpret_cast<void*>(from), 0, to - from); });
      std::memset(reinterpret_cast<void*>(last), 0, stop - last);
      at = stop;
      continue;
    }
    const uint64_t file_begin = range.pages->offset() + range.pages_offset;
    while (at < stop) {
      const off_t data = lseek(range.pages->fd(), static_cast<off_t>(file_begin + (at - range.begin)), SEEK_DATA);
      if (data < 0) {  // ENXIO: nothing but hole to the end of the file
        at = stop;
        break;
      }
      const uint64_t first = range.begin + (static_cast<uint64_t>(data) - file_begin);
      if (first >= stop) {
        at = stop;
        break;
      }
      const off_t hole = lseek(range.pages->fd(), data, SEEK_HOLE);
      const uint64_t last = hole < 0 ? stop : std::min(stop, range.begin + (static_cast<uint64_t>(hole) - file_begin));
      std::memset(reinterpret_cast<void*>(first), 0, last - first);
      at = last;
    }
  }
  if (at < end) std::memset(reinterpret_cast<void*>(at), 0, end - at);
}

ALOFT_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t count, int kind) {
  aclError code = check_copy("aclrtMemcpy", to, room, from, count, &kind);
  if (code != kOk || count == 0) return code;
  if (kind == kHostToHost) {
    std::memmove(to, from, count);
    return kOk;
  }
  if (!usable(&code) || (code = check_unsafe_call("aclrtMemcpy")) != kOk) return code;
  // A host that copies by hand sees what was queued before; in fuzz mode it does not, as on hardware, where only the
  // caller's own synchronisation orders this.
  if (settings().streams == StreamMode::Async) {
    const int device = aloftDeviceOf(kind == kHostToDevice ? to : from);
    if ((code = quiesce(device, "aclrtMemcpy")) != kOk) return code;
  }
  if (any_beside()) {
    join_beside(aloftDeviceOf(to));
    join_beside(aloftDeviceOf(from));
  }
  std::shared_lock<std::shared_mutex> copying(direct_copies());
  std::memmove(to, from, count);
  return kOk;
}

ALOFT_API aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t count, int kind,
                                    aclrtStream handle) {
  aclError code = check_copy("aclrtMemcpyAsync", to, room, from, count, &kind);
  if (code != kOk || count == 0) return code;
  Stream* stream = find_stream(handle, &code);
  if (!stream) return code;
  const bool later = !inline_mode() || stream->diverted.load(std::memory_order_relaxed) || stream->pending.load() > 0;
  if (later && kind == kHostToDevice && aloftDeviceOf(from) != -1) {
    if (capturing(stream)) {
      return fail(kRtCaptureBlocksAsync, "a copy from pageable host memory cannot be captured; pin the source");
    }
    // Pageable memory may change as soon as we return: keep a copy.
    const auto* bytes = static_cast<const unsigned char*>(from);
    auto held = std::make_shared<std::vector<unsigned char>>(bytes, bytes + count);
    return launch(handle, copy_name(kind), [to, held] {
      std::memcpy(to, held->data(), held->size());
      return kOk;
    });
  }
  if (later && kind == kDeviceToHost && aloftDeviceOf(to) != -1) {
    if (capturing(stream)) {
      return fail(kRtCaptureBlocksAsync, "a copy to pageable host memory cannot be captured; pin the destination");
    }
    // As in CANN, a copy to pageable memory returns when the data is there.
    code = launch(handle, copy_name(kind), [=] {
      std::memcpy(to, from, count);
      return kOk;
    });
    return code == kOk ? aloftDrainStream(handle) : code;
  }
  const auto move = [=] {
    std::memmove(to, from, count);
    return kOk;
  };
  return launch(handle, copy_name(kind), move, [=] {
    return std::array{Touch::bytes(Use::Keeps, from, count), Touch::bytes(Use::Writes, to, count)};
  });
}

// The condition asks CANN to refuse what it cannot do asynchronously; here every copy can be.
ALOFT_API aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t count, int kind,
                                                 aclrtStream stream) {
  return aclrtMemcpyAsync(to, room, from, count, kind, stream);
}

static aclError check_fill(const char* call, void* to, size_t room, size_t count) {
  if (count > room) return fail(kInvalidParam, "%s: %zu bytes do not fit the destination's %zu", call, count, room);
  if (count == 0) return kOk;
  if (!to) return fail(kInvalidParam, "%s: the destination is null", call);
  return aloftDeviceOf(to) == -1 ? kOk : check_device_operand(to, count, call, "destination");
}

static void fill(void* to, int value, size_t count) {
  if ((value & 0xff) == 0) {
    aloftFillZero(to, count);
  } else {
    std::memset(to, value, count);
  }
}

ALOFT_API aclError aclrtMemset(void* to, size_t room, int32_t value, size_t count) {
  aclError code = check_fill("aclrtMemset", to, room, count);
  if (code != kOk || count == 0) return code;
  if (!usable(&code) || (code = check_unsafe_call("aclrtMemset")) != kOk) return code;
  const int device = aloftDeviceOf(to);
  join_beside(device);
  if (device >= 0 && settings().streams == StreamMode::Async && (code = quiesce(device, "aclrtMemset")) != kOk)
    return code;
  std::shared_lock<std::shared_mutex> copying(direct_copies());
  fill(to, value, count);
  return kOk;
}

ALOFT_API aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t count, aclrtStream stream) {
  const aclError code = check_fill("aclrtMemsetAsync", to, room, count);
  if (code != kOk || count == 0) return code;
  const auto work = [=] {
    fill(to, value, count);
    return kOk;
  };
  return launch(stream, "fill", work, [=] { return std::array{Touch::bytes(Use::Writes, to, count)}; });
}

static aclError copy_batch(void** to, size_t* rooms, void** from, size_t* sizes, size_t n, size_t* failed,
                           aclrtStream stream, bool async) {
  if (!to || !rooms || !from || !sizes) return fail(kInvalidParam, "aclrtMemcpyBatch: an array is null");
  for (size_t i = 0; i < n; ++i) {
    const aclError code = async ? aclrtMemcpyAsync(to[i], rooms[i], from[i], sizes[i], kDefault, stream)
                                : aclrtMemcpy(to[i], rooms[i], from[i], sizes[i], kDefault);
    if (code != kOk) {
      if (failed) *failed = i;
      return code;
    }
  }
  if (failed) *failed = SIZE_MAX;
  return kOk;
}

ALOFT_API aclError aclrtMemcpyBatch(void** to, size_t* rooms, void** from, size_t* sizes, size_t n, void* attributes,
                                    size_t* indexes, size_t attribute_count, size_t* failed) {
  return copy_batch(to, rooms, from, sizes, n, failed, nullptr, false);
}

ALOFT_API aclError aclrtMemcpyBatchAsync(void** to, size_t* rooms, void** from, size_t* sizes, size_t n,
                                         void* attributes, size_t* indexes, size_t attribute_count, size_t* failed,
                                         aclrtStream stream) {
  return copy_batch(to, rooms, from, sizes, n, failed, stream, true);
}
