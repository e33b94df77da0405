#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/keys.h"
#include "kernels/parallel.h"
#include "kernels/sampling_impl.h"

namespace aloft {
namespace {

const SamplingKernels& kernels() {
  static const SamplingKernels portable = {widen, narrow, skip_to_above, mask_below, exps};
#if defined(__x86_64__)
  static const SamplingKernels& best = isa() == Isa::Portable ? portable : kSamplingAvx2;
#else
  static const SamplingKernels& best = portable;
#endif
  return best;
}

// Memory of one thread, kept from row to row.
struct Scratch {
  std::vector<float> e;
  std::vector<float> kept;      // candidates for the k largest
  std::vector<int32_t> left;    // tokens that are still in
  std::vector<uint64_t> items;  // key << 32 | index of tokens that may be removed
};

// The k-th largest of n values without NaN, 1 <= k < n. Values above the worst of the best so far are collected
// and thinned out when there are twice as many as needed.
float kth_largest(const float* x, int64_t n, int64_t k, std::vector<float>* kept) {
  auto thin = [&] {
    std::nth_element(kept->begin(), kept->begin() + (k - 1), kept->end(), std::greater<float>());
    kept->resize(static_cast<size_t>(k));
    return (*kept)[static_cast<size_t>(k - 1)];
  };
  const int64_t room = std::max<int64_t>(2 * k, k + 512);
  kept->assign(x, x + std::min(room, n));
  float worst = thin();
  for (int64_t i = room; i < n;) {
    i = kernels().skip_to_above(x, i, n, worst);
    const int64_t end = std::min(i + kLanes, n);
    for (; i < end; ++i) {
      if (x[i] > worst) kept->push_back(x[i]);
    }
    if (static_cast<int64_t>(kept->size()) >= room) worst = thin();
  }
  return thin();
}

uint64_t item_of(float v, int64_t i) { return static_cast<uint64_t>(sort_key(v)) << 32 | static_cast<uint64_t>(i); }
int64_t index_of(uint64_t item) { return static_cast<int64_t>(item & 0xffffffffu); }
float value_of(uint64_t item) { return key_value(static_cast<uint32_t>(item >> 32)); }

// Top-p over the tokens of the row that are not -inf. `most` is the maximum, finite.
void top_p_row(float* row, int64_t n, float most, float p, Scratch* scratch) {
  if (p >= 1.0f) return;
  if (scratch->e.size() < static_cast<size_t>(n)) scratch->e.resize(static_cast<size_t>(n));
  const float* e = scratch->e.data();
  // Nearly all tokens are far below the maximum, and together below 1 - p: they go without being looked at.
  const float cuts[kSamplingCuts] = {most - 5, most - 9, most - 14};
  double masses[kSamplingCuts];
  const double total = kernels().exps(row, scratch->e.data(), n, most, cuts, masses);
  const double allowed = p <= 0.0f ? INFINITY : static_cast<double>(1.0f - p) * total;
  double below = 0;
  for (int c = 0; c < kSamplingCuts; ++c) {
    if (masses[c] <= allowed) {
      kernels().mask_below(row, n, cuts[c]);
      below = masses[c];
      break;
    }
  }
  // The others go into bins by their distance from the maximum, 1/32 nat wide: only the bin in which the
  // cumulative probability passes 1 - p has to be sorted.
  constexpr int kBins = 1024;
  constexpr float kPerNat = 32;
  double mass[kBins] = {};
  auto bin = [&](float v) {
    const float b = (most - v) * kPerNat;
    return b < kBins - 1 ? static_cast<int>(b) : kBins - 1;
  };
  std::vector<int32_t>& left = scratch->left;
  left.clear();
  for (int64_t i = kernels().skip_to_above(row, 0, n, -INFINITY); i < n;
       i = kernels().skip_to_above(row, i, n, -INFINITY)) {
    for (const int64_t end = std::min(i + kLanes, n); i < end; ++i) {
      if (!(row[i] > -INFINITY)) continue;
      mass[bin(row[i])] += static_cast<double>(e[i]);
      left.push_back(static_cast<int32_t>(i));
    }
  }
  int edge = kBins - 1;
  while (edge > 0 && below + mass[edge] <= allowed) below += mass[edge--];

  std::vector<uint64_t>& items = scratch->items;
  items.clear();
  for (const int32_t i : left) {
    const int b = bin(row[i]);
    if (b > edge) {
      row[i] = -INFINITY;
    } else if (b == edge) {
      items.push_back(item_of(row[i], i));
    }
  }
  std::sort(items.begin(), items.end());
  // The bin of the maximum is the last one, and the maximum stays whatever its probability.
  const size_t removable = items.size() - (edge == 0 ? 1 : 0);
  for (size_t j = 0; j < removable; ++j) {
    const int64_t i = index_of(items[j]);
    below += static_cast<double>(e[i]);
    if (!(below <= allowed)) return;
    row[i] = -INFINITY;
  }
}

// Rows with NaN follow the rule to the letter: NaN sorts last, and no cumulative sum is <= 1 - p any more.
void nan_row(float* row, int64_t n, int64_t k, Scratch* scratch) {
  if (k <= 0 || k >= n) return;
  std::vector<uint64_t>& items = scratch->items;
  items.clear();
  for (int64_t i = 0; i < n; ++i) items.push_back(item_of(row[i], i));
  std::nth_element(items.begin(), items.begin() + (n - k), items.end());
  const float threshold = value_of(items[static_cast<size_t>(n - k)]);
  for (int64_t i = 0; i < n; ++i) {
    if (row[i] < threshold) row[i] = -INFINITY;
  }
}

float probability(const TopKTopPArgs& a, int64_t row) {
  if (a.dtype == DType::BF16) return to_float(static_cast<const bf16*>(a.p)[row]);
  if (a.dtype == DType::F16) return to_float(static_cast<const f16*>(a.p)[row]);
  return static_cast<const float*>(a.p)[row];
}

}  // namespace

void top_k_top_p_row(float* row, int64_t n, float most, int64_t k, float p) {
  static thread_local Scratch scratch;
  if (most != most) {
    nan_row(row, n, k, &scratch);
  } else if (most > -INFINITY) {
    if (k > 0 && k < n) kernels().mask_below(row, n, kth_largest(row, n, k, &scratch.kept));
    if (most < INFINITY) top_p_row(row, n, most, p, &scratch);
  }
}

void top_k_top_p(const TopKTopPArgs& args) {
  const int64_t n = args.vocabulary, grain = 1 + (1 << 13) / (n + 1), bytes = n * (args.dtype == DType::F32 ? 4 : 2);
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> row;
    if (row.size() < static_cast<size_t>(n)) row.resize(static_cast<size_t>(n));
    for (int64_t r = begin; r < end; ++r) {
      const float most = kernels().widen(static_cast<const char*>(args.logits) + r * bytes, args.dtype, row.data(), n);
      top_k_top_p_row(row.data(), n, most, args.k ? args.k[r] : 0, args.p ? probability(args, r) : 1.0f);
      kernels().narrow(row.data(), static_cast<char*>(args.y) + r * bytes, args.dtype, n);
    }
  });
}

}  // namespace aloft
