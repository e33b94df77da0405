// Operators on rows (gated unit, normalisation, rotary embedding, QKV into the cache) against the memory they touch.
//
//   benchmarks/kernels/rows_bench.sh [rounds]
//
// SmolLM2-135M's shapes in bf16, 8, 32 and 512 tokens. Every call takes the next of several sets of operands, 64 MiB
// together, as the layers of a model do (BENCH_HOT=1: the same set again and again). Medians.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/activation.h"
#include "kernels/cpu.h"
#include "kernels/norm.h"
#include "kernels/parallel.h"
#include "kernels/qkv.h"
#include "kernels/rotary.h"

using namespace aloft;

namespace {

constexpr size_t kBytes = size_t{64} << 20;
char* memory;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void line(const char* name, int64_t rows, int rounds, size_t bytes, const std::function<void(char*)>& call) {
  const bool hot = std::getenv("BENCH_HOT") != nullptr;
  const size_t room = (bytes + 4095) / 4096 * 4096, sets = hot ? 1 : std::max<size_t>(1, kBytes / room);
  std::vector<double> each;
  for (int i = 0; i < rounds * 20; ++i) {
    char* at = memory + static_cast<size_t>(i) % sets * room;
    const double start = now();
    call(at);
    each.push_back(now() - start);
  }
  const double t = median(each);
  std::printf("%-22s %5lld %9.1f us %7.2f GB/s\n", name, static_cast<long long>(rows), t * 1e6,
              static_cast<double>(bytes) / t / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  memory = static_cast<char*>(std::aligned_alloc(size_t{2} << 20, kBytes));
  madvise(memory, kBytes, MADV_HUGEPAGE);
  auto* words = reinterpret_cast<uint16_t*>(memory);
  uint32_t x = 1;
  for (size_t i = 0; i < kBytes / 2; ++i) {
    x = x * 1664525u + 1013904223u;  // values of both signs, magnitudes around 1
    words[i] = static_cast<uint16_t>((x >> 31 << 15) | (0x3f00 + (x >> 24 & 0xff)));
  }
  std::printf("isa %s, %d threads\n", isa_name(isa()), num_threads());
  std::vector<int64_t> slots(512);
  std::iota(slots.begin(), slots.end(), 0);
  for (const int64_t rows : {8, 32, 512}) {
    const size_t r = static_cast<size_t>(rows);
    line("silu and gate 1536", rows, rounds, r * 1536 * 6, [&](char* at) {
      GatedArgs a;
      a.dtype = DType::BF16, a.rows = rows, a.cols = 1536, a.stride = 3072;
      a.act = at, a.gate = at + 3072, a.y = at + r * 6144;
      gated(a);
    });
    line("add and rms norm 576", rows, rounds, r * 576 * 8, [&](char* at) {
      RmsNormArgs a;
      a.dtype = a.gamma_dtype = DType::BF16, a.rows = rows, a.cols = a.x_stride = 576;
      a.x = at, a.residual = at + r * 1152, a.sum = at + r * 2304, a.y = at + r * 3456, a.gamma = memory;
      rms_norm(a);
    });
    line("rotary 9 x 64", rows, rounds, r * (576 * 4 + 256), [&](char* at) {
      RotaryArgs a;
      a.dtype = a.table_dtype = DType::BF16, a.ndim = 2, a.width = 64;
      a.sizes[0] = rows, a.sizes[1] = 9;
      a.x_strides[0] = a.y_strides[0] = 576, a.x_strides[1] = a.y_strides[1] = 64;
      a.cos_strides[0] = a.sin_strides[0] = 64;
      a.x = at, a.y = at + r * 1152, a.cos = at + r * 2304, a.sin = at + r * 2432;
      rotary(a);
    });
    line("query key value", rows, rounds, r * (960 * 4 + 256 + 8), [&](char* at) {
      QkvArgs a;
      a.dtype = DType::BF16, a.tokens = rows, a.heads = 9, a.kv_heads = 3, a.d = a.d_rotary = 64;
      a.qkv = at, a.query = at + r * 1920, a.key.data = at + r * 3072, a.value.data = at + r * 3456;
      a.key.token = a.value.token = 192, a.key.head = a.value.head = 64, a.block_size = 128;
      a.key.block = a.value.block = 192 * 128;
      a.cos = at + r * 3840, a.sin = at + r * 3968, a.cos_stride = a.sin_stride = 64;
      a.slots = slots.data();
      finish_qkv(a);
    });
  }
}
