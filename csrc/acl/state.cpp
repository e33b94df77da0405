#include "acl/state.h"

#include <pthread.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "acl/stream.h"

namespace aloft {

bool g_forked = false;

namespace {

struct ThreadState {
  Context* context = nullptr;
  std::string text;
  std::string shown;  // keeps what aclGetRecentErrMsg returned alive
  aclError error = kOk;
  bool counted = false;
};

std::atomic<int> g_host_threads{0};

thread_local ThreadState* t_state = nullptr;
struct Cleaner {
  ~Cleaner() {
    if (t_state && t_state->counted) g_host_threads.fetch_sub(1, std::memory_order_relaxed);
    delete t_state;
    t_state = nullptr;  // calls from later destructors make a new one
  }
};

ThreadState& thread_state() {
  if (!t_state) {
    thread_local Cleaner cleaner;
    (void)cleaner;
    t_state = new ThreadState;
  }
  return *t_state;
}

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Context>> contexts;
  std::atomic<bool> used{false};
};

Registry& registry() {
  static Registry* const r = new Registry;
  return *r;
}

void format_error(const char* format, va_list arguments) {
  char buffer[1024];
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  thread_state().text = buffer;
}

void after_fork_in_child() {
  if (registry().used.load()) g_forked = true;
}

const int g_fork_handler = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

aclError fail(aclError code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  format_error(format, arguments);
  va_end(arguments);
  thread_state().error = code;
  return code;
}

aclError fail_text(aclError code, const std::string& text) {
  ThreadState& state = thread_state();
  state.text = text;
  state.error = code;
  return code;
}

const std::string& last_error_text() { return thread_state().text; }

aclError last_error(bool clear) {
  ThreadState& state = thread_state();
  const aclError error = state.error;
  if (clear) state.error = kOk;
  return error;
}

int device_count() { return static_cast<int>(settings().visible.size()); }

bool usable(aclError* code) {
  (void)g_fork_handler;
  if (g_forked) {
    *code = fail(kRtInternalError,
                 "the NPU runtime was in use when this process was forked and cannot be used in it; "
                 "start processes with the 'spawn' or 'forkserver' method");
    return false;
  }
  if (!settings().error.empty()) {
    *code = fail(kInvalidParam, "aloft: %s", settings().error.c_str());
    return false;
  }
  return true;
}

Context* context_of(int device, aclError* code) {
  if (!usable(code)) return nullptr;
  if (device < 0 || device >= device_count()) {
    *code = fail(kRtInvalidDevice, "device %d does not exist; there are %d (ALOFT_DEVICES, ASCEND_RT_VISIBLE_DEVICES)",
                 device, device_count());
    return nullptr;
  }
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  r.used = true;
  if (r.contexts.empty()) r.contexts.resize(device_count());
  if (!r.contexts[device]) {
    r.contexts[device] = std::make_unique<Context>(device);
    Context* context = r.contexts[device].get();
    context->default_stream = new_stream(context, 0, 0, true);
  }
  return r.contexts[device].get();
}

Context* current_context(aclError* code) {
  Context* context = thread_state().context;
  if (context && !g_forked) return context;
  if (!usable(code)) return nullptr;
  *code = fail(kRtContextNull, "this thread has no current context; call aclrtSetDevice first");
  return nullptr;
}

void select_context(Context* context) { thread_state().context = context; }

std::vector<Context*> contexts() {
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  std::vector<Context*> made;
  for (const auto& c : r.contexts) {
    if (c) made.push_back(c.get());
  }
  return made;
}

int host_threads() { return g_host_threads.load(std::memory_order_relaxed); }

void note_host_thread() {
  ThreadState& state = thread_state();
  if (!state.counted) {
    state.counted = true;
    g_host_threads.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace aloft

using namespace aloft;

ALOFT_API aclError aloftFail(aclError code, const char* text) { return fail_text(code, text); }

ALOFT_API void aloftSetError(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  format_error(format, arguments);
  va_end(arguments);
}

// As in CANN the text is handed out once; never null, since callers print it.
ALOFT_API const char* aclGetRecentErrMsg() {
  ThreadState& state = thread_state();
  state.shown.swap(state.text);
  state.text.clear();
  return state.shown.c_str();
}

ALOFT_API aclError aclrtGetLastError(int level) { return last_error(true); }
ALOFT_API aclError aclrtPeekAtLastError(int level) { return last_error(false); }

ALOFT_API aclError aclrtGetDeviceCount(uint32_t* count) {
  if (!count) return fail(kInvalidParam, "aclrtGetDeviceCount: count is null");
  *count = 0;
  aclError code = kOk;
  if (!usable(&code)) return code;
  *count = static_cast<uint32_t>(device_count());
  return kOk;
}

ALOFT_API aclError aclrtSetDevice(int32_t device) {
  aclError code = kOk;
  Context* context = context_of(device, &code);
  if (!context) return code;
  note_host_thread();
  select_context(context);
  return kOk;
}

ALOFT_API aclError aclrtGetDevice(int32_t* device) {
  if (!device) return fail(kInvalidParam, "aclrtGetDevice: device is null");
  aclError code = kOk;
  const Context* context = current_context(&code);
  if (!context) return code;
  *device = context->device;
  return kOk;
}

ALOFT_API aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (!context) return fail(kInvalidParam, "aclrtGetCurrentContext: context is null");
  aclError code = kOk;
  *context = current_context(&code);
  return *context ? kOk : code;
}

ALOFT_API aclError aclrtSetCurrentContext(aclrtContext context) {
  aclError code = kOk;
  if (!usable(&code)) return code;
  for (Context* made : contexts()) {
    if (made == context) {
      note_host_thread();
      select_context(made);
      return kOk;
    }
  }
  return fail(kInvalidParam, "aclrtSetCurrentContext: %p is not a context", context);
}

ALOFT_API aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  if (!active) return fail(kInvalidParam, "aclrtGetPrimaryCtxState: active is null");
  aclError code = kOk;
  if (!usable(&code)) return code;
  if (device < 0 || device >= device_count()) return fail(kRtInvalidDevice, "device %d does not exist", device);
  if (flags) *flags = 0;
  *active = 0;
  for (const Context* made : contexts()) *active |= made->device == device;
  return kOk;
}
