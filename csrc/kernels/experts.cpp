#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "acl/dtype.h"
#include "kernels/convert.h"
#include "kernels/parallel.h"

namespace aloft {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kColumns = 512;  // of a sum kept in fp32 at a time

inline float ordered(float v) { return std::isnan(v) ? kLowest : v; }

// The index of the largest of v[0, n) that is not taken; the first of equal ones.
int64_t largest(const float* v, const uint8_t* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || v[i] > v[best])) best = i;
  }
  return best;
}

void softmax_of(const float* x, int64_t n, float* s) {
  float high = kLowest;
  for (int64_t i = 0; i < n; ++i) high = std::max(high, ordered(x[i]));
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += s[i] = std::exp(x[i] - high);
  for (int64_t i = 0; i < n; ++i) s[i] /= sum;
}

struct Scratch {
  std::vector<float> x, scores, choice, value, weight;
  std::vector<uint8_t> taken, kept;
};

// Takes the experts of all but the best groups out of the choice.
void keep_groups(const GatingArgs& a, Scratch* t) {
  const int64_t each = a.experts / a.groups;
  t->value.assign(static_cast<size_t>(a.groups), 0);
  t->kept.assign(static_cast<size_t>(a.groups), 0);
  for (int64_t g = 0; g < a.groups; ++g) {
    const float* c = t->choice.data() + g * each;
    uint8_t* taken = t->taken.data() + g * each;
    const int64_t first = largest(c, taken, each);
    float value = c[first];
    if (a.two_largest && each > 1) {
      taken[first] = 1;
      value += c[largest(c, taken, each)];
      taken[first] = 0;
    }
    t->value[static_cast<size_t>(g)] = ordered(value);
  }
  for (int64_t i = 0; i < a.kept; ++i) {
    t->kept[static_cast<size_t>(largest(t->value.data(), t->kept.data(), a.groups))] = 1;
  }
  for (int64_t e = 0; e < a.experts; ++e) t->taken[static_cast<size_t>(e)] = !t->kept[static_cast<size_t>(e / each)];
}

void choose_row(const GatingArgs& a, int64_t row, Scratch* t) {
  const int64_t n = a.experts, item = static_cast<int64_t>(dtype_size(a.dtype));
  convert(static_cast<const char*>(a.x) + row * n * item, a.dtype, t->x.data(), DType::F32, n);
  float* s = t->scores.data();
  if (a.sigmoid) {
    for (int64_t e = 0; e < n; ++e) s[e] = 1 / (1 + std::exp(-t->x[static_cast<size_t>(e)]));
  } else if (a.winners_only) {
    std::copy(t->x.begin(), t->x.end(), s);
  } else {
    softmax_of(t->x.data(), n, s);
  }
  if (a.scores) std::copy(s, s + n, a.scores + row * n);
  for (int64_t e = 0; e < n; ++e) t->choice[static_cast<size_t>(e)] = ordered(a.bias ? s[e] + a.bias[e] : s[e]);
  std::fill(t->taken.begin(), t->taken.end(), uint8_t{0});
  if (a.groups > 1) keep_groups(a, t);
  int32_t* ids = a.ids + row * a.k;
  float* w = t->weight.data();
  for (int64_t j = 0; j < a.k; ++j) {
    const int64_t e = largest(t->choice.data(), t->taken.data(), n);
    t->taken[static_cast<size_t>(e)] = 1;
    ids[j] = static_cast<int32_t>(e);
    w[j] = s[e];
  }
  if (a.winners_only) softmax_of(w, a.k, w);
  if (a.divide) {
    float sum = 0;
    for (int64_t j = 0; j < a.k; ++j) sum += w[j];
    for (int64_t j = 0; j < a.k; ++j) w[j] /= sum + a.epsilon;
  }
  if (a.factor != 1) {
    for (int64_t j = 0; j < a.k; ++j) w[j] *= a.factor;
  }
  convert(w, DType::F32, static_cast<char*>(a.weights) + row * a.k * item, a.dtype, a.k);
  if (a.finished && a.finished[row]) std::fill(ids, ids + a.k, static_cast<int32_t>(n));
  for (int64_t j = 0; a.columns && j < a.k; ++j) a.columns[row * a.k + j] = static_cast<int32_t>(j * a.rows + row);
}

}  // namespace

void choose_experts(const GatingArgs& a) {
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, a.experts * (a.k + 4)));
  parallel_for(a.rows, grain, [&](int64_t begin, int64_t end) {
    Scratch t;
    const size_t n = static_cast<size_t>(a.experts);
    t.x.resize(n), t.scores.resize(n), t.choice.resize(n), t.taken.resize(n);
    t.weight.resize(static_cast<size_t>(a.k));
    for (int64_t row = begin; row < end; ++row) choose_row(a, row, &t);
  });
}

int64_t order_by_expert(const RoutingArgs& a) {
  const int64_t pairs = a.tokens * a.k, here = a.high - a.low;
  std::fill(a.counts, a.counts + here, int64_t{0});
  for (int64_t f = 0; f < pairs; ++f) {
    const int64_t e = a.ids[f];
    if (e < 0 || e >= a.experts) return -1 - f;
    if (e >= a.low && e < a.high) ++a.counts[e - a.low];
  }
  std::vector<int64_t> next(static_cast<size_t>(here));
  int64_t total = 0;
  for (int64_t e = 0; e < here; ++e) {
    next[static_cast<size_t>(e)] = total;
    total += a.counts[e];
  }
  for (int64_t f = 0; f < pairs; ++f) {
    const int64_t e = a.ids[f];
    if (e < a.low || e >= a.high) {
      a.place[f] = -1;
      continue;
    }
    const int64_t at = next[static_cast<size_t>(e - a.low)]++;
    a.place[f] = static_cast<int32_t>(at);
    a.pair[at] = static_cast<int32_t>(f);
  }
  return total;
}

void gather_tokens(const void* from, int64_t bytes, const int32_t* pair, int64_t k, int64_t rows, void* to) {
  parallel_for(rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, bytes)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<char*>(to) + i * bytes, static_cast<const char*>(from) + pair[i] / k * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

void combine_rows(const CombineArgs& a) {
  const int64_t item = static_cast<int64_t>(dtype_size(a.dtype));
  const int64_t blocks = (a.cols + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>(1, 16 / std::max<int64_t>(1, a.k));
  parallel_for(a.tokens * blocks, grain, [&](int64_t begin, int64_t end) {
    float sum[kColumns], row[kColumns];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / blocks, first = i % blocks * kColumns, n = std::min(kColumns, a.cols - first);
      std::fill(sum, sum + n, 0.f);
      for (int64_t j = 0; j < a.k; ++j) {
        const int64_t at = a.place[t * a.k + j];
        if (at < 0 || at >= a.row_count) continue;
        convert(static_cast<const char*>(a.rows) + (at * a.cols + first) * item, a.dtype, row, DType::F32, n);
        const float w = a.weight ? a.weight[t * a.k + j] : 1.f;
        for (int64_t c = 0; c < n; ++c) sum[c] += row[c] * w;
      }
      convert(sum, DType::F32, static_cast<char*>(a.y) + (t * a.cols + first) * item, a.dtype, n);
    }
  });
}

}  // namespace aloft
