// Devices, contexts and what each host thread has selected. A device's primary context owns its default
// stream; there is one context per device, as torch_npu uses it.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl/abi.h"
#include "acl/launch.h"
#include "acl/profile.h"

namespace aloft {

struct Stream;

struct Context {
  explicit Context(int id) : device(id) {}
  const int device;
  Stream* default_stream = nullptr;
  std::mutex mutex;                           // guards `streams`
  std::vector<Stream*> streams;               // live ones, the default stream first
  std::atomic<int> graph_streams{0};          // streams held by captured graphs
  uint32_t cube_limit = 0, vector_limit = 0;  // aclrtSetDeviceResLimit; 0: the whole device
};

// Sets the last-error text and returns `code`.
aclError fail(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Sets the last-error text from a ready text.
aclError fail_text(aclError code, const std::string& text);
const std::string& last_error_text();
aclError last_error(bool clear);

int device_count();
// The runtime cannot serve this process (bad environment, or forked after use): sets *code and the text.
bool usable(aclError* code);
// Context of `device`, made on first use. Null (with *code and text set) for a bad number.
Context* context_of(int device, aclError* code);
// Context this thread works in; null (with *code and text set) when it has not selected a device.
Context* current_context(aclError* code);
void select_context(Context* context);
// Contexts made so far.
std::vector<Context*> contexts();

// True once this process has been forked from one that already used the runtime.
extern bool g_forked;
// Live host threads that have used the runtime (the deadlock check needs to know whether there is another).
int host_threads();
void note_host_thread();

}  // namespace aloft
