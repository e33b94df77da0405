// What a thread does between two looks at a word that another thread will change.
#pragma once

namespace aloft {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace aloft
