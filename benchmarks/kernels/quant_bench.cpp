// Quantised products against the machine's limits, in turns in the same run.
//
//   benchmarks/kernels/quant_bench.sh [rounds] [megabytes of weights]
//
// For each shape, kind and row count: median time, GB/s of weight bytes and its share of the read bandwidth measured
// in the same round, GOP/s and its share of the int8 peak of this instruction set (operands in registers). The weights
// rotate through copies that exceed the caches. KIND=text, SHAPE=text, ROWS=n narrow it.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/quant_matmul.h"
#include "kernels/quant_widen.h"

using namespace aloft;

uint64_t read_all(const void* data, size_t bytes);  // matmul_bench_avx2.cpp
double int8_peak(int64_t steps);                    // quant_bench_peak.cpp: multiply-adds done
const char* int8_peak_name();

namespace {

// BENCH_CLOCK=cpu: processor time per thread instead of the wall's, for a machine that others use too.
double now() {
  static const bool cpu = std::getenv("BENCH_CLOCK") && !std::strcmp(std::getenv("BENCH_CLOCK"), "cpu");
  if (cpu) {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec)) / num_threads();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

struct Shape {
  const char* name;
  int64_t k, n;
};
constexpr Shape kShapes[] = {
    {"smollm2 qkv", 576, 960}, {"smollm2 o", 576, 576}, {"smollm2 gate_up", 576, 3072}, {"smollm2 down", 1536, 576},
    {"qwen3 qkv", 1024, 4096}, {"qwen3 o", 2048, 1024}, {"qwen3 gate_up", 1024, 6144},  {"qwen3 down", 3072, 1024},
};

struct Kind {
  const char* name;
  int bits;
  QuantLayout layout;
  int64_t group;
  bool widened;
};
constexpr Kind kKinds[] = {
    {"w8a8 nz", 8, QuantLayout::Panels, 0, false},       {"w8a8 [n,k]", 8, QuantLayout::Rows, 0, false},
    {"w8a8 [k,n]", 8, QuantLayout::Cols, 0, false},      {"w4a8 nz", 4, QuantLayout::Panels, 0, false},
    {"w4a8 [k,n]", 4, QuantLayout::Cols, 0, false},      {"w4a8 nz g128", 4, QuantLayout::Panels, 128, false},
    {"w4a4 [n,k]", 4, QuantLayout::Rows, 0, false},      {"w8a16 nz", 8, QuantLayout::Panels, 0, true},
    {"w8a16 [n,k]", 8, QuantLayout::Rows, 0, true},      {"w4a16 nz g64", 4, QuantLayout::Panels, 64, true},
    {"w4a16 [n,k] g64", 4, QuantLayout::Rows, 64, true},
};

bool chosen(const char* variable, const char* name) {
  const char* text = std::getenv(variable);
  return !text || std::strstr(name, text);
}

volatile uint64_t sink;

// Lines of the cache, as device memory is aligned.
template <class T>
struct Aligned {
  Aligned(size_t count, T value)
      : size_(count), data_(static_cast<T*>(std::aligned_alloc(4096, (count * sizeof(T) + 4095) / 4096 * 4096))) {
    std::fill(data_, data_ + count, value);
  }
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  size_t size() const { return size_; }
  size_t size_;
  T* data_;
};

double bandwidth(Aligned<uint8_t>& memory) {  // GB/s, all threads
  const size_t bytes = std::min<size_t>(memory.size(), size_t{128} << 20);
  static size_t turn = 0;
  const uint8_t* from = memory.data() + turn++ % (memory.size() / bytes) * bytes;
  const double start = now();
  parallel_for(static_cast<int64_t>(bytes >> 12), 64, [&](int64_t begin, int64_t end) {
    sink = read_all(from + (begin << 12), static_cast<size_t>(end - begin) << 12);
  });
  return static_cast<double>(bytes) / (now() - start) / 1e9;
}

double peak() {  // GOP/s, all threads
  const int threads = num_threads();
  std::vector<double> done(static_cast<size_t>(threads));
  const double start = now();
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) done[static_cast<size_t>(i)] = int8_peak(20000);
  });
  double total = 0;
  for (const double d : done) total += d;
  return 2 * total / (now() - start) / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const size_t megabytes = static_cast<size_t>(argc > 2 ? std::atoi(argv[2]) : 256);
  Aligned<uint8_t> memory(megabytes << 20, 0);
  uint32_t seed = 1;
  for (size_t i = 0; i < memory.size(); i += 4) {
    seed = seed * 1664525u + 1013904223u;
    std::memcpy(&memory[i], &seed, 4);
  }
  Aligned<int8_t> a(512 * 4096, 0);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int8_t>(memory[i * 7 % memory.size()]);
  Aligned<uint16_t> wide(a.size(), 0x3f80), out(512 * 8192, 0);
  Aligned<float> scale(64 * 8192, 1e-3f), tokens(512, 0.1f);
  std::printf("isa %s, %d threads, peak: %s\n", isa_name(isa()), num_threads(), int8_peak_name());
  std::printf("%-16s %-16s %5s %9s %8s %6s %9s %6s\n", "shape", "kind", "rows", "us", "GB/s", "of BW", "GOP/s",
              "of peak");
  for (const Shape& s : kShapes) {
    if (!chosen("SHAPE", s.name)) continue;
    for (const Kind& kind : kKinds) {
      if (!chosen("KIND", kind.name)) continue;
      const size_t bytes = static_cast<size_t>(s.k * s.n) * static_cast<size_t>(kind.bits) / 8;
      const size_t slot = (bytes + 4095) / 4096 * 4096, slots = memory.size() / slot;
      QuantWeight w;
      w.bits = kind.bits, w.layout = kind.layout;
      const int64_t line = kind.layout == QuantLayout::Rows ? s.k : s.n;
      w.stride = kind.layout == QuantLayout::Panels ? s.k : line * kind.bits / 8;
      for (const int64_t m : {1, 8, 32, 512}) {
        if (std::getenv("ROWS") && std::atoi(std::getenv("ROWS")) != m) continue;
        size_t turn = 0;
        const auto once = [&] {
          w.data = memory.data() + turn++ % slots * slot;
          if (kind.widened) {
            WidenMatmul c;
            c.m = m, c.n = s.n, c.k = s.k, c.a = wide.data(), c.a_stride = s.k, c.b = w, c.group = kind.group;
            c.scale = scale.data(), c.out = out.data(), c.out_stride = s.n;
            widen_matmul(c);
          } else {
            QuantMatmul c;
            c.m = m, c.n = s.n, c.k = s.k, c.a = a.data(), c.a_stride = s.k, c.b = w, c.group = kind.group;
            c.scale = scale.data(), c.row_scale = tokens.data(), c.out_dtype = DType::BF16, c.out = out.data();
            c.out_stride = s.n;
            quant_matmul(c);
          }
        };
        std::vector<double> times, of_bandwidth, of_peak;
        for (int r = 0; r < rounds; ++r) {
          const double gbs = bandwidth(memory), gops = m >= 32 ? peak() : 1;
          once();
          const int count = static_cast<int>(
              std::max<int64_t>(2, (int64_t{24} << 20) / static_cast<int64_t>(bytes) / (m > 32 ? 8 : 1)));
          const double start = now();
          for (int i = 0; i < count; ++i) once();
          const double t = (now() - start) / count;
          times.push_back(t);
          of_bandwidth.push_back(static_cast<double>(bytes) / t / 1e9 / gbs);
          of_peak.push_back(2. * static_cast<double>(m * s.k * s.n) / t / 1e9 / gops);
        }
        const double t = median(times);
        std::printf("%-16s %-16s %5lld %9.1f %8.2f %5.0f%% %9.1f %5.0f%%\n", s.name, kind.name,
                    static_cast<long long>(m), t * 1e6, static_cast<double>(bytes) / t / 1e9,
                    100 * median(of_bandwidth), 2. * static_cast<double>(m * s.k * s.n) / t / 1e9,
                    m >= 32 ? 100 * median(of_peak) : 0.);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
