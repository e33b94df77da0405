#include "kernels/attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/attention_tile.h"
#include "kernels/cpu.h"
#include "kernels/parallel.h"

namespace aloft {

const AttentionKernels& attention_kernels() {
#if defined(__x86_64__)
  if (isa() == Isa::Avx512) return kAttentionAvx512;
  if (isa() == Isa::Avx2) return kAttentionAvx2;
#endif
  return kAttentionPortable;
}

namespace {

struct Split {  // tasks [first, first + count) hold partial results of the same rows
  int64_t first, count;
};

// Keys the rows [row0, row0 + rows) may see, as [begin, end).
void visible_keys(const AttentionSequence& s, int64_t group, int64_t row0, int64_t rows, int64_t* begin, int64_t* end) {
  const int64_t first = row0 / group, last = (row0 + rows - 1) / group;
  *begin = std::min(std::max<int64_t>(0, first + s.low), s.kv_len);
  *end = std::min(s.kv_len, std::max(last + s.high, s.prefix - 1) + 1);
  if (*end < *begin) *end = *begin;
}

}  // namespace

void attention_forward(const AttentionProblem& p) {
  const AttentionKernels& kernels = attention_kernels();
  const int64_t group = p.heads / p.kv_heads, row_size = attention_partial_row(p);
  std::vector<AttentionTask> tasks;
  std::vector<Split> splits;
  std::vector<size_t> places;  // of a task's partial result; used where a task has one
  size_t floats = 0;
  for (int64_t b = 0; b < p.count; ++b) {
    const AttentionSequence& s = p.sequences[b];
    const int64_t rows = s.q_len * group;
    // Everything here follows from this sequence alone, so that a row's bits do not depend on the batch.
    int64_t block = rows;
    if (rows > kBlockRows + kBlockRows / 3) block = std::max<int64_t>(1, kBlockRows / group) * group;
    const bool split = rows == block;
    for (int64_t row0 = 0; row0 < rows; row0 += block) {
      const int64_t n = std::min(block, rows - row0);
      int64_t begin, end;
      visible_keys(s, group, row0, n, &begin, &end);
      begin = begin / kSplitKeys * kSplitKeys;
      const int64_t cuts = split && end > begin ? (end - begin + kSplitKeys - 1) / kSplitKeys : 1;
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        if (cuts > 1) splits.push_back({static_cast<int64_t>(tasks.size()), cuts});
        for (int64_t c = 0; c < cuts; ++c) {
          AttentionTask t;
          t.sequence = b;
          t.kv_head = h;
          t.row0 = row0;
          t.rows = n;
          t.key0 = begin + c * kSplitKeys;
          t.key1 = cuts > 1 ? std::min(end, t.key0 + kSplitKeys) : end;
          tasks.push_back(t);
          places.push_back(floats);
          if (cuts > 1) floats += static_cast<size_t>(n * row_size);
        }
      }
    }
  }
  std::unique_ptr<float[]> partial(floats ? new float[floats] : nullptr);
  for (const Split& s : splits)
    for (int64_t i = s.first; i < s.first + s.count; ++i)
      tasks[static_cast<size_t>(i)].partial = partial.get() + places[static_cast<size_t>(i)];
  // Causal blocks grow with the row: the long ones first, so that the threads end together.
  parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) kernels.run(p, tasks[tasks.size() - 1 - static_cast<size_t>(i)]);
  });
  if (!splits.empty())
    parallel_for(static_cast<int64_t>(splits.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        kernels.merge(p, tasks[static_cast<size_t>(splits[static_cast<size_t>(i)].first)],
                      splits[static_cast<size_t>(i)].count);
    });
}

}  // namespace aloft
