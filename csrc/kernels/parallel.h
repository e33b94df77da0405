// The one thread pool of the process. Kernels never start threads of their own.
#pragma once
#include <cstdint>
#include <type_traits>

namespace aloft {

// Threads a kernel may use: ALOFT_THREADS, else the processors this process may run on
// (shared out between the engines of one host by the worker, see set_num_threads).
int num_threads();
void set_num_threads(int n);

namespace detail {
void run_parallel(int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);
}

// Calls body(begin, end) over disjoint ranges covering [0, count). Ranges hold at least `grain`
// items (the last may hold fewer). Runs in the calling thread when one range covers all; nested calls run
// serially. body must not throw.
template <class F>
void parallel_for(int64_t count, int64_t grain, F&& body) {
  using Body = std::remove_reference_t<F>;
  detail::run_parallel(
      count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace aloft
