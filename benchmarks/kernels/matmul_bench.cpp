// Matrix products against the machine's limits, measured in turns in the same run.
//
//   benchmarks/kernels/matmul_bench.sh [rounds] [megabytes of weights]
//
// ROWS=1,8,32, SHAPE=text in the name, LAYOUT=nz|nz_t|nk|kn, BENCH_HUGE=1 (weights on huge pages, as device memory is),
// BENCH_CLOCK=cpu, GATED=1 (products with SwiGLU).
//
// For each shape, every round times: reading memory, fp32 multiply-adds, the product. The weights rotate through
// copies that exceed the caches, as the layers of a model do. Printed per shape: medians, GB/s of weights and its
// share of the read bandwidth, GFLOP/s and its share of the multiply-add peak (shares are medians of each
// round's ratio).
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/matmul_fused.h"
#include "kernels/parallel.h"

using namespace aloft;

double fma_peak_avx2(int64_t steps);    // matmul_bench_avx2.cpp: multiply-adds done, to be divided by the time
double fma_peak_avx512(int64_t steps);  // matmul_bench_avx512.cpp
uint64_t read_all(const void* data, size_t bytes);

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

// The weights: BENCH_HUGE=1 asks for huge pages.
struct Memory {
  explicit Memory(size_t bytes) : bytes(bytes) {
    words = static_cast<uint16_t*>(std::aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) >> 21 << 21));
    if (const char* huge = std::getenv("BENCH_HUGE"); huge && *huge == '1') madvise(words, bytes, MADV_HUGEPAGE);
  }
  ~Memory() { std::free(words); }
  Memory(const Memory&) = delete;
  uint16_t* data() { return words; }
  const uint16_t* data() const { return words; }
  size_t size() const { return bytes / 2; }
  uint16_t& operator[](size_t i) { return words[i]; }
  size_t bytes;
  uint16_t* words;
};

constexpr Shape kShapes[] = {
    {"smollm2 qkv", 576, 960},       {"smollm2 o", 576, 576},         {"smollm2 gate_up", 576, 3072},
    {"smollm2 down", 1536, 576},     {"smollm2 lm_head", 576, 49152}, {"qwen3 qkv", 1024, 4096},
    {"qwen3 o", 2048, 1024},         {"qwen3 gate_up", 1024, 6144},   {"qwen3 down", 3072, 1024},
    {"qwen3 lm_head", 1024, 151936},
};

volatile uint64_t sink;

double bandwidth(const Memory& memory) {  // GB/s
  const size_t bytes = std::min<size_t>(memory.size() * 2, size_t{256} << 20);
  static size_t turn = 0;
  const size_t pieces = memory.size() * 2 / bytes;
  const unsigned char* from = reinterpret_cast<const unsigned char*>(memory.data()) + turn++ % pieces * bytes;
  const double start = now();
  parallel_for(static_cast<int64_t>(bytes >> 16), 16, [&](int64_t begin, int64_t end) {
    sink = read_all(from + (begin << 16), static_cast<size_t>(end - begin) << 16);
  });
  return static_cast<double>(bytes) / (now() - start) / 1e9;
}

double peak() {  // GFLOP/s of all threads
  const int threads = num_threads();
  std::vector<double> done(static_cast<size_t>(threads));
  const double start = now();
  parallel_for(threads * 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double d = isa() >= Isa::Avx512 ? fma_peak_avx512(400000) : fma_peak_avx2(400000);
      if (i < threads) done[static_cast<size_t>(i)] = d;
    }
  });
  return 2 * 4 * threads * done[0] / (now() - start) / 1e9;
}

// ROWS=1,8,32, by default the ladder of decode batches and prefill chunks.
std::vector<int64_t> rows_wanted() {
  const char* text = std::getenv("ROWS");
  std::vector<int64_t> rows;
  for (const char* p = text && *text ? text : "1,2,4,8,16,32,64,128,512,2048"; *p;) {
    char* end;
    rows.push_back(std::strtoll(p, &end, 10));
    p = *end ? end + 1 : end;
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const size_t megabytes = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 1024;
  const char* only = std::getenv("SHAPE");
  const char* layout = std::getenv("LAYOUT");  // nz (default), nz_t, nk, kn
  const bool gate = std::getenv("GATED") != nullptr;
  const std::string how = layout ? layout : "nz";
  Memory memory(megabytes << 20);
  for (size_t i = 0; i < memory.size(); ++i)
    memory[i] = static_cast<uint16_t>(0x3c00 + (i * 2654435761u >> 24) % 256 + (i * 2246822519u >> 31 << 15));
  std::printf("isa %s, %d threads, weights %s bf16, %zu MiB in rotation\n", isa_name(isa()), num_threads(), how.c_str(),
              megabytes);
  std::printf("%-18s %5s %10s %8s %7s %9s %7s\n", "shape", "M", "us", "GB/s", "of read", "GFLOP/s", "of peak");
  for (const Shape& shape : kShapes) {
    if (only && !std::strstr(shape.name, only)) continue;
    for (int64_t m : rows_wanted()) {
      if (shape.n > 40000 && m > 128) continue;
      // Aligned and on huge pages, as device memory is.
      Memory a(static_cast<size_t>(m * shape.k) * 2), out(static_cast<size_t>(m * shape.n) * 2);
      for (size_t i = 0; i < a.size(); ++i) a[i] = memory[i * 7 % memory.size()] ^ static_cast<uint16_t>(i >> 3 << 15);
      const Memory like(a.bytes);
      std::copy_n(a.data(), a.size(), like.words);
      std::fill_n(out.data(), out.size(), uint16_t{0});
      const size_t size = static_cast<size_t>(shape.k * shape.n);
      const size_t copies = std::max<size_t>(1, memory.size() / size);
      Matmul call;
      call.m = m, call.n = shape.n, call.k = shape.k;
      call.a = {a.data(), Element::BF16, shape.k, 1};
      call.out = {out.data(), Element::BF16, shape.n, 1};
      call.b = {memory.data(), Element::BF16, how == "nk" ? 1 : shape.n, how == "nk" ? shape.k : 1};
      if (how == "nz") call.b.layout = WeightLayout::Panels, call.b.padded_rows = shape.k;
      if (how == "nz_t") call.b.layout = WeightLayout::PanelsTransposed, call.b.padded_rows = shape.n;
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(size);
      const int repeats = static_cast<int>(std::max(3.0, std::min(200.0, 4e9 / flops)));
      std::vector<double> seconds, of_read, of_peak;
      size_t copy = 0;
      for (int round = 0; round < rounds; ++round) {
        const double read = bandwidth(memory), fma = peak();
        std::vector<double> each;
        for (int i = 0; i < repeats; ++i) {
          call.b.data = memory.data() + copy++ % copies * size;
          // Written anew by all threads, as the operator before does.
          parallel_for(m, std::max<int64_t>(1, 16384 / shape.k), [&](int64_t begin, int64_t end) {
            std::copy(like.words + begin * shape.k, like.words + end * shape.k, a.words + begin * shape.k);
          });
          const double start = now();
          if (gate) {
            matmul_gated(call);
          } else {
            matmul(call);
          }
          each.push_back(now() - start);
        }
        const double t = median(each);
        seconds.push_back(t);
        of_read.push_back(static_cast<double>(size) * 2 / t / 1e9 / read);
        of_peak.push_back(flops / t / 1e9 / fma);
      }
      const double t = median(seconds);
      std::printf("%-18s %5lld %10.1f %8.2f %6.0f%% %9.1f %6.0f%%\n", shape.name, static_cast<long long>(m), t * 1e6,
                  static_cast<double>(size) * 2 / t / 1e9, 100 * median(of_read), flops / t / 1e9,
                  100 * median(of_peak));
      std::fflush(stdout);
    }
  }
  std::printf("read %.1f GB/s, multiply-adds %.1f GFLOP/s\n", bandwidth(memory), peak());
}
