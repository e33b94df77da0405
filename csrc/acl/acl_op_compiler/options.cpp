// Compile options: kept and handed back. The kernels here are compiled ahead, so the options that choose a
// precision or a cache change nothing; torch_npu asks for their values at start.
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "acl/abi.h"
#include "acl/launch.h"

namespace {

constexpr int kOptionCount = 17;
constexpr int kJitCompile = 10;
std::mutex g_mutex;
std::map<int, std::string>& values() {
  static auto* const map = new std::map<int, std::string>{{0, "allow_fp32_to_fp16"}, {10, "disable"}, {11, "0"}};
  return *map;
}

}  // namespace

// 1 while operators are to be compiled at run time: torch_npu then leaves the aclnn door for the legacy one. Read by
// libaloft_torch.
ALOFT_API std::atomic<int> aloftJitCompile{0};

ALOFT_API aclError aclSetCompileopt(int option, const char* value) {
  if (option < 0 || option >= kOptionCount || !value) {
    aloftSetError("aclSetCompileopt: %d is not an option (0 to %d), or its value is null", option, kOptionCount - 1);
    return aloft::kInvalidParam;
  }
  std::lock_guard<std::mutex> lock(g_mutex);
  values()[option] = value;
  if (option == kJitCompile) aloftJitCompile = std::strcmp(value, "enable") == 0;
  return aloft::kOk;
}

// Bytes of the value, its end mark included.
ALOFT_API size_t aclGetCompileoptSize(int option) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto it = values().find(option);
  return it == values().end() ? 1 : it->second.size() + 1;
}

ALOFT_API aclError aclGetCompileopt(int option, char* value, size_t length) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto it = values().find(option);
  const std::string text = it == values().end() ? "" : it->second;
  if (!value || length < text.size() + 1) {
    aloftSetError("aclGetCompileopt: %zu bytes are too few for the value of option %d (%zu)", length, option,
                  text.size() + 1);
    return aloft::kInvalidParam;
  }
  std::memcpy(value, text.c_str(), text.size() + 1);
  return aloft::kOk;
}
