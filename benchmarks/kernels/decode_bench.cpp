// The products of a decode step of one token, one after the other as the layers make them, with what comes between.
//
//   benchmarks/kernels/quant_bench.sh build && build/bench/decode_bench [steps] [rounds]
//
// SmolLM2-135M's 30 layers and its head in int8, W4A8 with groups of 96 and W8A8. Between the products: the norm, the
// quantisation of its row, and `PAUSE_NS` (default 5000) in the place of attention. GAP_US (default 0): rest between
// steps. SCALES=i64: scales as npu_trans_quant_param makes them. Prints the median of each round's steps in
// microseconds, and GB/s of all bytes. Run it with another LD_LIBRARY_PATH to compare builds in turns.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/norm.h"
#include "kernels/parallel.h"
#include "kernels/quant_matmul.h"
#include "kernels/quantize.h"

using namespace aloft;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Huge pages, as device memory is.
class Memory {
 public:
  explicit Memory(size_t bytes) : size_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    madvise(p, bytes, MADV_HUGEPAGE);
    data_ = static_cast<char*>(p);
  }
  char* take(size_t bytes) {
    char* at = data_ + used_;
    used_ += (bytes + 511) / 512 * 512;
    if (used_ > size_) std::abort();
    return at;
  }
  size_t used() const { return used_; }

 private:
  char* data_;
  size_t size_, used_ = 0;
};

struct Product {
  QuantMatmul call;
  bool gated = false;
};

Product product(Memory* memory, int64_t k, int64_t n, int bits, int64_t group, bool packed, bool gated) {
  Product p;
  QuantMatmul& c = p.call;
  c.m = 1, c.n = n, c.k = k, c.a_stride = k, c.group = group, c.out_dtype = DType::BF16;
  c.b.bits = bits, c.b.layout = QuantLayout::Panels, c.b.stride = k;
  const size_t bytes = static_cast<size_t>(k * n * bits / 8), scales = static_cast<size_t>((group ? k / group : 1) * n);
  char* weights = memory->take(bytes);
  static uint32_t seed = 1;
  for (size_t i = 0; i < bytes; i += 4) {
    seed = seed * 1664525u + 1013904223u;
    std::memcpy(weights + i, &seed, 4);
  }
  c.b.data = reinterpret_cast<const uint8_t*>(weights);
  char* scale = memory->take(scales * (packed ? 8 : 4));
  const float value = bits == 4 ? 1e-3f : 1e-4f;
  for (size_t i = 0; i < scales; ++i) std::memcpy(scale + i * (packed ? 8 : 4), &value, 4);
  c.scale = scale, c.scale_dtype = packed ? DType::I64 : DType::F32;
  p.gated = gated;
  c.out_stride = gated ? n / 2 : n;
  return p;
}

void pause(double seconds) {
  for (const double until = now() + seconds; now() < until;) __builtin_ia32_pause();
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 40, rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  const auto number = [](const char* name, double otherwise) {
    return std::getenv(name) ? std::atof(std::getenv(name)) : otherwise;
  };
  const double attention = number("PAUSE_NS", 5000) * 1e-9, gap = number("GAP_US", 0) * 1e-6;
  const bool packed = std::getenv("SCALES") && !std::strcmp(std::getenv("SCALES"), "i64");
  constexpr int64_t kHidden = 576, kInner = 1536, kQkv = 960, kVocabulary = 49152;
  Memory memory(size_t{256} << 20);
  std::vector<uint16_t> x(kInner, 0x3f80), y(kVocabulary), gamma(kHidden, 0x3f80), residual(kHidden, 0x3f80);
  std::vector<int8_t> codes(kInner);
  float token = 1;
  std::printf("%d threads\n", num_threads());
  struct Kind {
    const char* name;
    int bits;
    int64_t group;
  };
  struct Made {
    Kind kind;
    std::vector<Product> layers;
    size_t bytes;
  };
  std::vector<Made> made;
  for (const Kind kind : {Kind{"w4a8 g96", 4, 96}, Kind{"w8a8", 8, 0}}) {
    Made m{kind, {}, memory.used()};
    const bool i64 = packed && kind.bits == 4;
    for (int layer = 0; layer < 30; ++layer) {
      m.layers.push_back(product(&memory, kHidden, kQkv, kind.bits, kind.group, i64, false));
      m.layers.push_back(product(&memory, kHidden, kHidden, kind.bits, kind.group, i64, false));
      m.layers.push_back(product(&memory, kHidden, 2 * kInner, kind.bits, kind.group, i64, true));
      m.layers.push_back(product(&memory, kInner, kHidden, kind.bits, kind.group, i64, false));
    }
    m.layers.push_back(product(&memory, kHidden, kVocabulary, 8, 0, false, false));
    m.bytes = memory.used() - m.bytes;
    made.push_back(m);
  }
  const auto step = [&](const Made& m) {
    for (size_t i = 0; i < m.layers.size(); ++i) {
      Product p = m.layers[i];
      if (i % 4 == 1) pause(attention);
      if (i % 2 == 0) {
        RmsNormArgs norm;
        norm.rows = 1, norm.cols = norm.x_stride = kHidden, norm.dtype = norm.gamma_dtype = DType::BF16;
        norm.x = x.data(), norm.residual = norm.sum = residual.data(), norm.gamma = gamma.data(), norm.y = x.data();
        rms_norm(norm);
      }
      DynamicQuantArgs quant;
      quant.rows = 1, quant.cols = p.call.k, quant.dtype = DType::BF16, quant.x = x.data(), quant.y = codes.data();
      quant.scale = &token;
      dynamic_quant(quant);
      p.call.a = codes.data(), p.call.row_scale = &token, p.call.out = y.data();
      p.gated ? quant_matmul_gated(p.call) : quant_matmul(p.call);
    }
  };
  for (int r = 0; r < rounds; ++r) {
    for (const Made& m : made) {
      std::vector<double> times;
      for (int s = 0; s < steps + 2; ++s) {
        if (gap > 0) pause(gap);
        const double start = now();
        step(m);
        if (s >= 2) times.push_back(now() - start);
      }
      std::sort(times.begin(), times.end());
      const double t = times[times.size() / 2];
      std::printf("%-10s %8.0f us %6.2f GB/s (%.1f MB)\n", m.kind.name, t * 1e6, static_cast<double>(m.bytes) / t / 1e9,
                  static_cast<double>(m.bytes) / 1e6);
    }
  }
  return 0;
}
