// Denormals as zero, on the way in and out, for the life of the object: what AMX does with bf16 whatever the mode is
// set to. The rounding mode and the other bits stay.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace aloft {
namespace {

class FlushDenormals {
 public:
  explicit FlushDenormals(bool wanted) : wanted_(wanted) {
    if (!wanted_) return;
    before_ = read();
    write(before_ | kFlush);
  }
  ~FlushDenormals() {
    if (wanted_) write(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned;
  static constexpr Word kFlush = 0x8040;  // MXCSR: FTZ, DAZ
  static Word read() { return _mm_getcsr(); }
  static void write(Word mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kFlush = Word{1} << 24;  // FPCR: FZ
  static Word read() {
    Word mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Word mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
  using Word = unsigned;
  static constexpr Word kFlush = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif
  bool wanted_;
  Word before_ = 0;
};

}  // namespace
}  // namespace aloft
