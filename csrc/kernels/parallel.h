// The one thread pool of the process. Kernels never start threads of their own.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/api.h"

namespace aloft {

// Threads a kernel may use: ALOFT_THREADS, else the processors this process may run on
// (shared out between the engines of one host by the worker, see set_num_threads).
// A bad ALOFT_THREADS (or ALOFT_SPIN_US) makes every call throw std::invalid_argument.
ALOFT_KERNEL_API int num_threads();
// 1 <= n <= 1024, else std::invalid_argument. Takes effect at the next parallel_for.
ALOFT_KERNEL_API void set_num_threads(int n);

namespace detail {
ALOFT_KERNEL_API void run_parallel(int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);
}

// Calls body(begin, end) over disjoint ranges covering [0, count). Ranges begin at a multiple of `grain` and
// hold at least `grain` items (the last may hold fewer). Runs in the calling thread when one range covers all;
// nested calls, and calls made while another thread's loop has the pool, run serially. Which thread takes a range
// and how ranges are cut varies from call to call: a result must not depend on it. body must not throw.
template <class F>
void parallel_for(int64_t count, int64_t grain, F&& body) {
  using Body = std::remove_reference_t<F>;
  detail::run_parallel(
      count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Which of the threads of a loop the calling one is, inside of it: 0 the one that called it, the others mostly, but not
// always, the same from loop to loop.
ALOFT_KERNEL_API int loop_place();

// The calling thread takes part in loops of other threads until done(context); false when none was open for a while.
// done is called often, and must be cheap.
ALOFT_KERNEL_API bool help_loops(bool (*done)(void*), void* context);
// While on, loops of the calling thread use one thread less, and leave its place to one that helps.
ALOFT_KERNEL_API void leave_place(bool on);

}  // namespace aloft

extern "C" {
// For Python (ctypes) and other languages. Set: 0, or -1 for a number outside 1..1024.
// Get: -1 when the environment is wrong; aloftKernelsError() has the text (null when all is well).
ALOFT_KERNEL_API int aloftSetNumThreads(int n);
ALOFT_KERNEL_API int aloftNumThreads(void);
ALOFT_KERNEL_API const char* aloftKernelsError(void);
// "portable", "avx2", "avx512" or "amx"; null when the environment is wrong.
ALOFT_KERNEL_API const char* aloftKernelsIsa(void);
}
