// What touching memory again costs after a pause: pages_bench [SECONDS ...]. 32 MiB in pages of 4 KiB, in order and
// shuffled, and in huge pages; microseconds a page of 4 KiB, and at once again.
//   g++ -O1 benchmarks/kernels/pages_bench.cpp -o build/bench/pages_bench && build/bench/pages_bench 0 0.1 1 3
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr size_t kBytes = size_t{32} << 20, kPage = 4096, kHuge = size_t{2} << 20, kPages = kBytes / kPage;

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

volatile char* memory(int advice) {
  void* p = mmap(nullptr, kBytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<size_t>(p) + kHuge - 1) & ~(kHuge - 1));
  madvise(aligned, kBytes, advice);
  std::memset(aligned, 1, kBytes);
  return aligned;
}

double microseconds(volatile char* p, const std::vector<size_t>& order) {
  unsigned sum = 0;
  const double start = now();
  for (const size_t page : order) sum += static_cast<unsigned>(p[page * kPage + page * 64 % kPage]);
  return sum ? 1e6 * (now() - start) / static_cast<double>(order.size()) : 0;
}

}  // namespace

int main(int count, char** values) {
  std::vector<size_t> in_order(kPages);
  std::iota(in_order.begin(), in_order.end(), size_t{0});
  std::vector<size_t> shuffled = in_order;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  volatile char *small = memory(MADV_NOHUGEPAGE), *other = memory(MADV_NOHUGEPAGE), *huge = memory(MADV_HUGEPAGE);
  for (int i = 1; i < count; ++i) {
    usleep(static_cast<useconds_t>(1e6 * std::atof(values[i])));
    const double first[] = {microseconds(small, shuffled), microseconds(other, in_order), microseconds(huge, shuffled)};
    std::printf("after %s s: shuffled %.2f, in order %.2f, huge %.3f us a page; again %.2f, %.2f, %.3f\n", values[i],
                first[0], first[1], first[2], microseconds(small, shuffled), microseconds(other, in_order),
                microseconds(huge, shuffled));
  }
}
