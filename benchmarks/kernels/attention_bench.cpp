// Attention against the machine's limits, measured in turns in the same run.
//
//   benchmarks/kernels/attention_bench.sh [rounds] [megabytes of cache]
//
// A bf16 paged cache (blocks of 128 tokens in random order) of which every call uses another part, as the layers of a
// model do. Decode: one query token a sequence. Prefill: a causal chunk at the end of its context. Each round
// times reading memory, then the operator. Printed: medians, the part of a call that reading its keys and values does
// not explain, GB/s of keys and values and its share of the read bandwidth (median of each round's ratio), GFLOP/s of
// the visible scores (4 x head_dim for each pair of query and key).
// BENCH=text: only lines with it. BENCH_ORDER=1: blocks in order. BENCH_HOT=1: the same cache part again and again.
// BENCH_CLOCK=cpu: processor time.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu.h"
#include "kernels/parallel.h"

using namespace aloft;

uint64_t read_all(const void* data, size_t bytes);  // matmul_bench_avx2.cpp

namespace {

bool is_set(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text && !std::strcmp(text, value);
}

double now() {
  static const bool cpu = is_set("BENCH_CLOCK", "cpu");
  if (cpu) {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec)) / num_threads();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Memory {
  explicit Memory(size_t bytes) : bytes(bytes) {
    words = static_cast<uint16_t*>(std::aligned_alloc(2 << 20, bytes));
    madvise(words, bytes, MADV_HUGEPAGE);
    uint32_t x = 12345;
    for (size_t i = 0; i < bytes / 2; ++i) {
      x = x * 1664525u + 1013904223u;  // values of both signs, magnitudes around 1
      words[i] = static_cast<uint16_t>((x >> 31 << 15) | (0x3f00 + (x >> 24 & 0xff)));
    }
  }
  size_t bytes;
  uint16_t* words;
};

volatile uint64_t sink;

double bandwidth(
    const Memory& memory) {  // GB/s: median of pieces, so that losing the processor now and then does not count
  const size_t piece = size_t{8} << 20;
  static size_t turn = 0;
  std::vector<double> each;
  for (int i = 0; i < 16; ++i) {
    const char* from = reinterpret_cast<const char*>(memory.words) + turn++ % (memory.bytes / piece) * piece;
    const double start = now();
    parallel_for(static_cast<int64_t>(piece >> 16), 8, [&](int64_t begin, int64_t end) {
      sink = read_all(from + (begin << 16), static_cast<size_t>(end - begin) << 16);
    });
    each.push_back(now() - start);
  }
  return static_cast<double>(piece) / median(each) / 1e9;
}

struct Model {
  const char* name;
  int64_t heads, kv_heads, d;
};

constexpr Model kModels[] = {{"smollm2", 9, 3, 64}, {"qwen3", 16, 8, 128}};
constexpr int64_t kBlock = 128;

struct Bench {
  const Memory& memory;
  int rounds;
  bool hot = is_set("BENCH_HOT", "1");

  void line(const Model& model, const char* kind, int64_t batch, int64_t q_len, int64_t context) {
    char name[64];
    std::snprintf(name, sizeof name, "%s %s %lldx%lld/%lld", model.name, kind, static_cast<long long>(batch),
                  static_cast<long long>(q_len), static_cast<long long>(context));
    if (const char* only = std::getenv("BENCH"); only && !std::strstr(name, only)) return;
    const int64_t row = model.kv_heads * model.d, per = (context + kBlock - 1) / kBlock;
    const int64_t blocks = static_cast<int64_t>(memory.bytes / 4) / (row * kBlock);
    if (batch * per > blocks) return;
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    if (!is_set("BENCH_ORDER", "1")) std::shuffle(table.begin(), table.end(), std::mt19937(7));
    const int64_t width = model.heads * model.d, rows = batch * q_len;
    std::vector<uint16_t> q(static_cast<size_t>(rows * width)), out(q.size());
    std::copy_n(memory.words, q.size(), q.begin());
    AttentionProblem p;
    p.type = AttentionType::BF16;
    p.heads = model.heads, p.kv_heads = model.kv_heads, p.d = p.d_v = model.d;
    p.scale = 1.f / std::sqrt(static_cast<float>(model.d));
    p.q_token = p.out_token = width, p.q_head = p.out_head = model.d;
    p.k_block = p.v_block = row * kBlock, p.k_token = p.v_token = row, p.k_head = p.v_head = model.d;
    p.block_size = kBlock;
    std::vector<AttentionSequence> sequences(static_cast<size_t>(batch));
    p.sequences = sequences.data(), p.count = batch;
    for (int64_t b = 0; b < batch; ++b) {
      AttentionSequence& s = sequences[static_cast<size_t>(b)];
      s.q_len = q_len, s.kv_len = context, s.high = context - q_len;
      s.q = q.data() + b * q_len * width, s.out = out.data() + b * q_len * width;
      s.k = memory.words, s.v = memory.words + memory.bytes / 4;
    }
    const double bytes = static_cast<double>(batch * context * row * 4);
    const double pairs = static_cast<double>(batch * model.heads) * static_cast<double>(q_len) *
                         (static_cast<double>(context) - static_cast<double>(q_len - 1) / 2);
    const double flops = 4 * static_cast<double>(model.d) * pairs;
    const int repeats = static_cast<int>(std::max(3.0, std::min(300.0, std::min(2e8 / bytes, 1e10 / flops))));
    std::vector<double> seconds, beyond, share;
    int64_t at = 0;
    for (int round = 0; round < rounds; ++round) {
      const double read = bandwidth(memory);
      std::vector<double> each;
      for (int i = 0; i < repeats; ++i) {
        for (AttentionSequence& s : sequences) {
          if (at + per > blocks) at = 0;
          s.blocks = table.data() + at;
          if (!hot) at += per;
        }
        const double start = now();
        attention_forward(p);
        each.push_back(now() - start);
      }
      const double t = median(each);
      seconds.push_back(t);
      beyond.push_back(t - bytes / read / 1e9);
      share.push_back(bytes / t / 1e9 / read);
    }
    const double t = median(seconds);
    std::printf("%-28s %10.1f %10.1f %8.2f %6.0f%% %9.1f\n", name, t * 1e6, 1e6 * median(beyond), bytes / t / 1e9,
                100 * median(share), flops / t / 1e9);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const Memory memory(static_cast<size_t>(argc > 2 ? std::atoi(argv[2]) : 512) << 20);
  Bench bench{memory, rounds};
  std::printf("isa %s, %d threads, %zu MiB of bf16 cache in rotation, read %.1f GB/s\n", isa_name(isa()), num_threads(),
              memory.bytes >> 20, bandwidth(memory));
  std::printf("%-28s %10s %10s %8s %7s %9s\n", "call", "us", "beyond", "GB/s", "of read", "GFLOP/s");
  for (const Model& model : kModels) {
    for (int64_t batch : {1, 8, 32})
      for (int64_t context : {32, 256, 1024, 4096, 8192}) bench.line(model, "decode", batch, 1, context);
    for (int64_t tokens : {128, 512, 2048}) bench.line(model, "prefill", 1, tokens, tokens);
    bench.line(model, "prefill", 1, 512, 4096);
    bench.line(model, "prefill", 4, 32, 32);
    bench.line(model, "prefill", 4, 512, 512);
  }
}
