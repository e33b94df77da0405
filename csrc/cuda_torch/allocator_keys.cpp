// Lets torch_npu 2.13.0 load beside a CUDA build of torch, which is what PyPI offers for x86-64.
//
// libc10_cuda.so and libtorch_npu.so both register the allocator setting "pinned_reserve_segment_size_mb" while
// they are loaded, and c10 ends the process over the duplicate. Loaded before both, this library answers c10's
// exported AcceleratorAllocatorConfig::getMutableKeys() in its place: torch_npu registers, the first time it asks, into
// a set of its own, which is merged into c10's at the next call. Whoever asks otherwise gets c10's set, torch_npu when
// it looks its settings up among them.
// Mapped only where torch is such a build (see _aloft_preload.py); without it nothing here is needed.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_set>

namespace c10::CachingAllocator {

using Keys = std::unordered_set<std::string>;

// Declared by us after the exported symbol; the class has other members, none of which is used.
struct __attribute__((visibility("default"))) AcceleratorAllocatorConfig {
  static Keys& getMutableKeys();
};

namespace {

Keys& c10_keys() {
  static const auto get = [] {
    void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
    void* symbol =
        library ? dlsym(library, "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev")
                : nullptr;
    if (!symbol) {
      std::fputs("aloft: this torch keeps its allocator settings elsewhere than 2.13.0; install torch 2.13.0\n",
                 stderr);
      std::abort();
    }
    return reinterpret_cast<Keys& (*)()>(symbol);
  }();
  return get();
}

}  // namespace

Keys& AcceleratorAllocatorConfig::getMutableKeys() {
  static Keys of_torch_npu;
  static bool registered = false;
  Keys& keys = c10_keys();
  keys.insert(of_torch_npu.begin(), of_torch_npu.end());
  Dl_info caller{};
  if (!registered && dladdr(__builtin_return_address(0), &caller) && caller.dli_fname &&
      std::strstr(caller.dli_fname, "libtorch_npu.so")) {
    registered = true;
    return of_torch_npu;
  }
  return keys;
}

}  // namespace c10::CachingAllocator
