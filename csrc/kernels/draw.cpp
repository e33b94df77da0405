#include "kernels/draw.h"

#include <vector>

#include "kernels/cpu.h"
#include "kernels/draw_impl.h"
#include "kernels/ordering.h"
#include "kernels/parallel.h"
#include "kernels/sampling.h"

namespace aloft {
namespace {

const DrawKernels& kernels() {
  static const DrawKernels portable = {divide, exponentials, sums_of_pieces};
#if defined(__x86_64__)
  static const DrawKernels& best = isa() == Isa::Portable ? portable : kDrawAvx2;
#else
  static const DrawKernels& best = portable;
#endif
  return best;
}

struct Place {
  int64_t at;
  float left;  // of the target, before that place
};

// Where the running sum of n weights, each times `scale`, first exceeds the target (`number` times all of it where
// `first`), but not behind the last weight: sums are rounded, and the target may lie beyond them.
Place find(const float* weights, int64_t n, float scale, bool first, float target, std::vector<float>* sums) {
  if (sums->size() < static_cast<size_t>(n)) sums->resize(static_cast<size_t>(n));
  float* running = sums->data();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float w = weights[i] * scale;
    sum += static_cast<double>(w);
    running[i] = static_cast<float>(sum);
  }
  const float all = running[n - 1];
  if (first) target = target * all;
  int64_t at = 0, last = 0;
  for (int64_t i = 0; i < n; ++i) {
    at += running[i] <= target;
    last += running[i] < all;
  }
  if (last < at) at = last;
  const float w = weights[at] * scale, left = target - (running[at] - w);
  return {at, left < 0 ? 0.f : left};
}

int64_t draw_scaled(const float* weights, int64_t n, float scale, const float* sums, int64_t pieces, float number) {
  static thread_local std::vector<float> running;
  const int64_t width = n / pieces;
  const Place piece = find(sums, pieces, 1.f, true, number, &running);
  return piece.at * width + find(weights + piece.at * width, width, scale, false, piece.left, &running).at;
}

void sample_row(const SampleArgs& a, int64_t r, float* row, float* sums) {
  const int64_t n = a.vocabulary;
  const char* logits = static_cast<const char*>(a.logits) + r * n * (a.dtype == DType::F32 ? 4 : 2);
  const float temperature = a.temperature[r];
  if (temperature < kGreedyBelow) {
    int64_t at = 0;
    OrderingArgs args;
    args.outer = 1, args.n = n, args.dtype = a.dtype, args.x = logits, args.indices = &at;
    arg_extreme(args, true);
    a.tokens[r] = static_cast<int32_t>(at);
    return;
  }
  const float most = kernels().divide(logits, a.dtype, temperature, row, n);
  const int64_t k = a.k ? a.k[r] : 0;
  const float p = a.p ? a.p[r] : 1.f;
  if ((k > 0 && k < n) || p < 1.f) top_k_top_p_row(row, n, most, k, p);
  const float scale = kernels().exponentials(row, n);
  kernels().sums(row, n / a.pieces, a.pieces, scale, sums);
  a.tokens[r] = static_cast<int32_t>(draw_scaled(row, n, scale, sums, a.pieces, a.numbers[r]));
}

}  // namespace

int64_t draw_from(const float* probabilities, int64_t n, const float* sums, int64_t pieces, float number) {
  return draw_scaled(probabilities, n, 1.f, sums, pieces, number);
}

void piece_sums(const float* probabilities, int64_t n, int64_t pieces, float* sums) {
  kernels().sums(probabilities, n / pieces, pieces, 1.f, sums);
}

void sample(const SampleArgs& args) {
  parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> scratch;
    const size_t need = static_cast<size_t>(args.vocabulary + args.pieces);
    if (scratch.size() < need) scratch.resize(need);
    for (int64_t r = begin; r < end; ++r) sample_row(args, r, scratch.data(), scratch.data() + args.vocabulary);
  });
}

}  // namespace aloft
