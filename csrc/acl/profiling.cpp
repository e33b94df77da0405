// The host side of the profiler interface. Nothing is collected: registering and reporting are accepted, since
// torch_npu does both whether or not anybody profiles, and reports go nowhere (as in CANN while profiling is off).
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_map>

#include "acl/abi.h"

ALOFT_API int32_t MsprofRegisterCallback(uint32_t module, void* handle) { return 0; }
ALOFT_API int32_t MsprofReportApi(uint32_t aging, const void* api) { return 0; }
ALOFT_API int32_t MsprofReportCompactInfo(uint32_t aging, const void* data, uint32_t length) { return 0; }
ALOFT_API int32_t MsprofReportAdditionalInfo(uint32_t aging, const void* data, uint32_t length) { return 0; }

// Nanoseconds of a steady clock.
ALOFT_API uint64_t MsprofSysCycleTime() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

ALOFT_API uint64_t MsprofGetHashId(const char* text, size_t length) {
  uint64_t hash = 1469598103934665603ull;
  for (size_t i = 0; text && i < length; ++i) hash = (hash ^ static_cast<unsigned char>(text[i])) * 1099511628211ull;
  return hash;
}
