// What the stress tests share: the ACL calls they use, checks that end the process, small helpers.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "acl/abi.h"
#include "acl/launch.h"

extern "C" {
const char* aclGetRecentErrMsg();
aclError aclrtSetDevice(int32_t device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtGetMemInfo(int attr, size_t* free_bytes, size_t* total_bytes);
aclError aclrtMalloc(void** address, size_t size, int policy);
aclError aclrtFree(void* address);
aclError aclrtMallocHost(void** address, size_t size);
aclError aclrtFreeHost(void* address);
aclError aclrtHostRegister(void* address, uint64_t size, int type, void** device_address);
aclError aclrtHostUnregister(void* address);
aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t count, int kind);
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t count, int kind, aclrtStream stream);
aclError aclrtMemset(void* to, size_t room, int32_t value, size_t count);
aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t count, aclrtStream stream);
aclError aclrtCreateStream(aclrtStream* stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtDestroyStreamForce(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t ms);
aclError aclrtSynchronizeDevice();
aclError aclrtStreamQuery(aclrtStream stream, int* status);
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flags);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtQueryEventStatus(aclrtEvent event, int* status);
aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end);
aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtValueWait(void* address, uint64_t value, uint32_t flag, aclrtStream stream);
aclError aclrtValueWrite(void* address, uint64_t value, uint32_t flag, aclrtStream stream);
aclError aclrtReserveMemAddress(void** address, size_t size, size_t alignment, void* expected, uint64_t flags);
aclError aclrtReleaseMemAddress(void* address);
aclError aclrtMallocPhysical(void** handle, size_t size, const void* properties, uint64_t flags);
aclError aclrtFreePhysical(void* handle);
aclError aclrtMapMem(void* address, size_t size, size_t offset, void* handle, uint64_t flags);
aclError aclrtUnmapMem(void* address);
aclError aclrtMemExportToShareableHandle(void* handle, int type, uint64_t flags, uint64_t* shareable);
aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void** handle);
aclError aclrtIpcMemGetExportKey(void* address, size_t size, char* key, size_t length, uint64_t flags);
aclError aclrtIpcMemSetImportPid(const char* key, int32_t* pids, size_t count);
aclError aclrtIpcMemImportByKey(void** address, const char* key, uint64_t flags);
aclError aclrtIpcMemClose(const char* key);
aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void*), void* arguments);
aclError aclmdlRICaptureBegin(aclrtStream stream, int mode);
aclError aclmdlRICaptureEnd(aclrtStream stream, void** model);
aclError aclmdlRICaptureGetInfo(aclrtStream stream, int* status, void** model);
aclError aclmdlRIExecuteAsync(void* model, aclrtStream stream);
aclError aclmdlRIDestroy(void* model);
aclError aclmdlRIDebugJsonPrint(void* model, const char* path, uint32_t flags);
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream);
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, void** group);
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, void* group);
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream);
}

enum { kToDevice = 1, kToHost = 2, kOnDevice = 3 };

#define CHECK(CONDITION)                                                           \
  do {                                                                             \
    if (!(CONDITION)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #CONDITION); \
      std::_Exit(1);                                                               \
    }                                                                              \
  } while (0)

#define OK(CALL)                                                                                               \
  do {                                                                                                         \
    const aclError code_ = (CALL);                                                                             \
    if (code_ != 0) {                                                                                          \
      std::fprintf(stderr, "%s:%d: %s gave %d: %s\n", __FILE__, __LINE__, #CALL, code_, aclGetRecentErrMsg()); \
      std::_Exit(1);                                                                                           \
    }                                                                                                          \
  } while (0)

// The call must fail with this code and a text that holds this word.
#define FAILS(CALL, CODE, WORD)                                                                               \
  do {                                                                                                        \
    const aclError code_ = (CALL);                                                                            \
    const std::string text_ = aclGetRecentErrMsg();                                                           \
    if (code_ != (CODE) || text_.find(WORD) == std::string::npos) {                                           \
      std::fprintf(stderr, "%s:%d: %s gave %d (%s), wanted %d with '%s'\n", __FILE__, __LINE__, #CALL, code_, \
                   text_.c_str(), static_cast<int>(CODE), WORD);                                              \
      std::_Exit(1);                                                                                          \
    }                                                                                                         \
  } while (0)

inline bool inline_streams() {
  const char* mode = std::getenv("ALOFT_STREAMS");
  return !mode || std::string(mode) == "inline";
}

// One scenario: a name and what it does; `scale` multiplies its iterations.
struct Scenario {
  const char* name;
  void (*run)(int scale);
};

std::vector<Scenario> graph_scenarios();
std::vector<Scenario> beside_scenarios();

// body(0) ... body(count - 1), each in a thread of its own that has selected the device.
inline void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&body, t] {
      OK(aclrtSetDevice(0));
      body(t);
    });
  }
  for (auto& thread : threads) thread.join();
}
